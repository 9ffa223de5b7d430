package main

import "context"

// contentionScenario has more and more senders meet at the outbox, or not meet at
// the ledger.
var contentionScenario = scenario{
	name:     "contention",
	what:     "as senders grow, on MariaDB: the ledger, and an outbox that skips what is locked",
	headline: headline{metric: "delivered/s"},
	run: func(ctx context.Context, w *world) error {
		for round := range pick(w.long, w.rounds, 1) {
			for _, c := range w.chosen(ledger, outboxPoll) {
				if err := w.contend(ctx, round, c); err != nil {
					return err
				}
			}
		}
		return nil
	},
}

func (w *world) contend(ctx context.Context, round int, c *contender) error {
	s, err := w.begin(ctx, c, kind{onMariaDB: true})
	if err != nil {
		return err
	}
	defer s.end()
	for _, n := range w.workers.or(pick(w.long, []int{8, 32, 128}, []int{8, 128})...) {
		m, err := s.measure(order{Window: w.window, Workers: n, Size: 512}, catchUp)
		if err != nil {
			return err
		}
		w.add(round, "contention", "MariaDB, "+concurrent(n), c.name,
			"committed/s", m.committed,
			"delivered/s", m.delivered,
			"transaction p50 ms", quantile(m.Took, 0, 0.5),
			"p99 ms", quantile(m.Took, 0, 0.99),
			"database CPU µs per message", perMessage(m.cpu.database, m.came))
	}
	return nil
}
