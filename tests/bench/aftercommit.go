package main

import (
	"context"
	"database/sql"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
)

var (
	// bare sends no message. It measures the cost of the business row alone.
	bare = &contender{
		name:   "bare",
		label:  "no message",
		what:   "the business row alone, no message",
		silent: true,
		setUp:  setUpNothing,
		open: func(_ context.Context, _ place, b business) (application, error) {
			return &afterCommitApplication{business: b}, nil
		},
	}
	// afterCommit guarantees nothing: a process that dies between the commit and the publishing
	// loses its messages.
	afterCommit = &contender{
		name:  "after-commit",
		label: "publish after commit,\nmay lose messages",
		what:  "commit, then publish to the target and wait for the confirm; no guarantee",
		setUp: setUpNothing,
		open: func(_ context.Context, p place, b business) (application, error) {
			publisher, err := newPublisher(p.AMQP, 2)
			if err != nil {
				return nil, err
			}
			return &afterCommitApplication{b, publisher, p.Target}, nil
		},
	}
)

func setUpNothing(context.Context, place, *sql.DB) error { return nil }

type afterCommitApplication struct {
	business
	publisher *publisher // nil: it publishes nothing
	target    string
}

func (a *afterCommitApplication) transact(ctx context.Context, bodies [][]byte, decide func() bool) (instant, error) {
	committed, err := a.in(ctx, decide, func(bridge.Tx) error { return nil })
	if err != nil || committed == 0 || a.publisher == nil {
		return committed, err
	}
	letters := make([]letter, len(bodies))
	for i, body := range bodies {
		letters[i] = letter{queue: a.target, id: uuid.NewString(), body: body}
	}
	return committed, a.publisher.publish(ctx, letters...)
}

func (a *afterCommitApplication) close() {
	if a.publisher != nil {
		a.publisher.close()
	}
}
