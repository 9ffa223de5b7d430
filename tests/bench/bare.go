package main

import (
	"context"
	"database/sql"
)

// bare sends nothing: what the business row costs by itself.
var bare = &contender{
	name:   "bare",
	label:  "no message",
	what:   "the business row alone, no message",
	silent: true,
	setUp:  func(context.Context, place, *sql.DB) error { return nil },
	open: func(_ context.Context, p place, db *sql.DB) (application, error) {
		return bareApplication{newBusiness(p, db)}, nil
	},
}

type bareApplication struct{ business }

func (a bareApplication) transact(ctx context.Context, _ [][]byte, decide func() bool) (instant, error) {
	return a.in(ctx, decide, func(*sql.Tx) error { return nil })
}

func (a bareApplication) close() {}
