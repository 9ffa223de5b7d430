package main

import (
	"context"
	"database/sql"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
)

// afterCommit guarantees nothing: what dies between the commit and the publishing
// loses its messages.
var afterCommit = &contender{
	name:  "after-commit",
	label: "publish after commit,\nmay lose messages",
	what:  "commit, then publish to the target and wait for the confirm; no guarantee",
	setUp: func(context.Context, place, *sql.DB) error { return nil },
	open: func(_ context.Context, p place, b business) (application, error) {
		publisher, err := newPublisher(p.AMQP, 2)
		if err != nil {
			return nil, err
		}
		return &afterCommitApplication{b, publisher, p.Target}, nil
	},
}

type afterCommitApplication struct {
	business
	publisher *publisher
	target    string
}

func (a *afterCommitApplication) transact(ctx context.Context, bodies [][]byte, decide func() bool) (instant, error) {
	committed, err := a.in(ctx, decide, func(bridge.Tx) error { return nil })
	if err != nil || committed == 0 {
		return 0, err
	}
	letters := make([]letter, len(bodies))
	for i, body := range bodies {
		letters[i] = letter{queue: a.target, id: uuid.NewString(), body: body}
	}
	return committed, a.publisher.publish(ctx, letters...)
}

func (a *afterCommitApplication) close() { a.publisher.close() }
