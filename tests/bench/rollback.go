package main

import (
	"context"
	"fmt"
)

// rollbackScenario has half of the transactions roll back.
var rollbackScenario = scenario{
	name: "rollback",
	what: "32 concurrent transactions, of which none or half roll back: committed and delivered per second, and how long the committed ones take",
	run: func(ctx context.Context, w *world) error {
		for round := range w.rounds {
			for _, c := range w.chosen(ledger, outboxPoll) {
				if c != ledger && !w.long {
					continue
				}
				if err := w.rollbackRound(ctx, round, c); err != nil {
					return err
				}
			}
		}
		return nil
	},
}

func (w *world) rollbackRound(ctx context.Context, round int, c *contender) error {
	s, err := w.begin(ctx, c, kind{})
	if err != nil {
		return err
	}
	defer s.end()
	for _, share := range []float64{0, 0.5} {
		m, err := s.measure(order{Window: w.window, Workers: 32, Size: 512, RollBack: share}, catchUp)
		if err != nil {
			return err
		}
		seconds := m.To.sub(m.From).Seconds()
		w.add(round, "rollback", fmt.Sprintf("%.0f %% rolled back", share*100), c.name,
			"transactions/s", float64(m.Committed+m.RolledBack)/seconds,
			"committed/s", m.committed,
			"delivered/s", m.delivered,
			"commit to target p50 ms", quantile(m.latencies, m.missing, 0.5),
			"p99 ms", quantile(m.latencies, m.missing, 0.99),
			"CPU µs per transaction", perMessage(m.cpu.total(), m.Committed+m.RolledBack))
	}
	return nil
}
