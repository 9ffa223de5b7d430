package main

import (
	"context"
	"database/sql"
	"fmt"
)

// growthScenario drains backlogs of different lengths.
var growthScenario = scenario{
	name: "growth",
	what: "draining backlogs of 10 thousand and 100 thousand staged messages (with -long 1 million), and one of 50 thousand beside a million orphan rows: rate, and the verifier's largest resident memory",
	run: func(ctx context.Context, w *world) error {
		sizes := []int{10_000, 100_000}
		if w.long {
			sizes = append(sizes, 1_000_000)
		}
		for round := range pick(w.long, w.rounds, 1) {
			for _, n := range sizes {
				if err := w.growthRound(ctx, round, fmt.Sprintf("%d staged", n), n, stageSingly); err != nil {
					return err
				}
			}
			if err := w.growthRound(ctx, round, "50000 staged, 1000000 orphans", 50_000, stageAmongOrphans); err != nil {
				return err
			}
		}
		return nil
	},
}

func (w *world) growthRound(ctx context.Context, round int, what string, n int, fill filler) error {
	d, err := w.drain(ctx, drains[0], n, fill, moveByVerifier)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	w.add(round, "growth", what, ledger.name, append(d.values(), "memory MiB", float64(d.memory)/(1<<20))...)
	return nil
}

// stageAmongOrphans stages in a ledger that has a million rows of messages that
// were forwarded long ago, or never staged.
func stageAmongOrphans(ctx context.Context, w *world, p place, db *sql.DB, size, n int) error {
	err := run(ctx, db, `INSERT INTO bridge_ledger (id) SELECT gen_random_uuid() FROM generate_series(1, 1000000)`, `ANALYZE bridge_ledger`)
	if err != nil {
		return err
	}
	return stageSingly(ctx, w, p, db, size, n)
}
