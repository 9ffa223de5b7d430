package main

import (
	"context"
	"database/sql"

	"github.com/twoqueue/twoqueue/bridge"
)

// bare sends nothing: what the business row costs by itself.
var bare = &contender{
	name:   "bare",
	label:  "no message",
	what:   "the business row alone, no message",
	silent: true,
	setUp:  func(context.Context, place, *sql.DB) error { return nil },
	open: func(_ context.Context, _ place, b business) (application, error) {
		return bareApplication{b}, nil
	},
}

type bareApplication struct{ business }

func (a bareApplication) transact(ctx context.Context, _ [][]byte, decide func() bool) (instant, error) {
	return a.in(ctx, decide, func(bridge.Tx) error { return nil })
}

func (a bareApplication) close() {}
