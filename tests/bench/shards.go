package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// shardsScenario drains one backlog that lies in several staging queues, each with
// a verifier of its own.
var shardsScenario = scenario{
	name: "shards",
	what: "a backlog in one staging queue with one verifier, in two with two, in four with four, all with the same ledger and target: messages per second from the first to the last",
	run: func(ctx context.Context, w *world) error {
		for round := range w.rounds {
			for _, shards := range []int{1, 2, 4} {
				what := fmt.Sprintf("%d staging queues", shards)
				d, err := w.drainShards(ctx, shards, w.backlog)
				if err != nil {
					return fmt.Errorf("%s: %w", what, err)
				}
				w.add(round, "shards", what, ledger.name, d.values()...)
			}
		}
		return nil
	},
}

// drainShards spreads a backlog over staging queues, and drains them together.
func (w *world) drainShards(ctx context.Context, shards, n int) (result drained, err error) {
	whole, db, leave, err := w.newPlace(ctx, ledger, kind{})
	if err != nil {
		return result, err
	}
	defer leave()
	parts := make([]place, shards)
	for i := range parts {
		parts[i] = whole
		parts[i].Staging = fmt.Sprintf("%s.%d", whole.Staging, i)
		if err := w.fillShard(ctx, parts[i], db, n/shards); err != nil {
			return result, fmt.Errorf("stage: %w", err)
		}
	}
	if err := w.settle(ctx); err != nil {
		return result, err
	}
	before := readProcessorTimes(0)
	var verifiers []*child
	defer func() {
		for _, v := range verifiers {
			err = errors.Join(err, v.stop())
		}
	}()
	for _, part := range parts {
		v, err := w.startVerifier(part)
		if err != nil {
			return result, err
		}
		verifiers = append(verifiers, v)
	}
	return w.watchDrain(ctx, whole.Target, n/shards*shards, before, verifiers...)
}

func (w *world) fillShard(ctx context.Context, p place, db *sql.DB, n int) error {
	if err := ledger.setUp(ctx, p, db); err != nil {
		return err
	}
	return stageSingly(ctx, w, p, db, drains[0].size, n)
}
