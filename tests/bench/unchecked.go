package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/verifier"
)

// unchecked is the name of a relay that works like the verifier and checks nothing.
const unchecked = "unchecked"

// relayUnchecked is the relay's process: package verifier with the worker's defaults and a ledger
// that costs nothing. Unlike the worker it has no metrics and no side jobs.
func relayUnchecked(ctx context.Context, p place) error {
	db, err := p.open(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	l, err := postgres.Open(ctx, db)
	if err != nil {
		return err
	}
	broker, err := bridge.Dial(ctx, p.AMQP, nil)
	if err != nil {
		return err
	}
	defer broker.Close()
	_, server, err := l.Settle(ctx, uuid.New(), time.Second) // the outcomes must name the proven server
	if err != nil {
		return err
	}
	v, err := verifier.New(allCommittedLedger{l, server}, broker, &verifier.Options{
		Topology: bridge.Topology{Queue: p.Staging, Classic: p.Classic},
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	return v.Run(ctx)
}

// allCommittedLedger is a ledger that reports every transaction as committed and forgets nothing. The
// verifier's proof runs on the wrapped ledger.
type allCommittedLedger struct {
	driver.Ledger
	server driver.Instance
}

func (c allCommittedLedger) ProofLedger() driver.Ledger { return c.Ledger }

func (allCommittedLedger) Features() driver.Features { return driver.Features{} }

func (c allCommittedLedger) Committed(_ context.Context, ids []uuid.UUID) ([]uuid.UUID, driver.Instance, error) {
	return ids, c.server, nil
}

func (c allCommittedLedger) Settle(context.Context, uuid.UUID, time.Duration) (driver.Outcome, driver.Instance, error) {
	return driver.Committed, c.server, nil
}

func (allCommittedLedger) Forget(context.Context, []uuid.UUID) ([]uuid.UUID, error) { return nil, nil }
