package main

import (
	"context"
)

// contentionScenario has more and more senders meet at the outbox, or not meet at
// the ledger.
var contentionScenario = scenario{
	name:     "contention",
	what:     "as senders grow: the ledger, an outbox that skips what is locked, an outbox that is a queue with locks; on PostgreSQL (where the scenario live has the first two; with -long here too) and MariaDB",
	headline: headline{metric: "delivered/s"},
	run: func(ctx context.Context, w *world) error {
		for round := range pick(w.long, w.rounds, 1) {
			for _, onMariaDB := range []bool{false, true} {
				for _, c := range w.chosen(ledger, outboxPoll, outboxLocked) {
					if !w.long && !onMariaDB && c != outboxLocked {
						continue // the scenario live has it
					}
					if err := w.contend(ctx, round, c, onMariaDB); err != nil {
						return err
					}
				}
			}
		}
		return nil
	},
}

func (w *world) contend(ctx context.Context, round int, c *contender, onMariaDB bool) error {
	s, err := w.begin(ctx, c, kind{onMariaDB: onMariaDB})
	if err != nil {
		return err
	}
	defer s.end()
	for _, n := range w.workers.or(pick(w.long, []int{8, 32, 128}, []int{8, 128})...) {
		m, err := s.measure(order{Window: w.window, Workers: n, Size: 512}, catchUp)
		if err != nil {
			return err
		}
		w.add(round, "contention", pick(onMariaDB, "MariaDB, ", "PostgreSQL, ")+concurrent(n), c.name,
			"committed/s", m.committed,
			"delivered/s", m.delivered,
			"transaction p50 ms", quantile(m.Took, 0, 0.5),
			"p99 ms", quantile(m.Took, 0, 0.99),
			"database CPU µs per message", perMessage(m.cpu.database, m.came))
	}
	return nil
}
