package main

import (
	"context"
	"fmt"
	"time"
)

// slowScenario has transactions that stay open after they have sent.
var slowScenario = scenario{
	name: "slow",
	what: "300 transactions a second, while others have sent and stay open for the whole measurement (4 s, with -long 10 s): what of these the 300 notice",
	run: func(ctx context.Context, w *world) error {
		for round := range pick(w.long, w.rounds, 1) {
			for _, c := range w.chosen(ledger, outboxPoll) {
				if c != ledger && !w.long {
					continue
				}
				if err := w.slowRound(ctx, round, c); err != nil {
					return err
				}
			}
		}
		return nil
	},
}

func (w *world) slowRound(ctx context.Context, round int, c *contender) error {
	s, err := w.begin(ctx, c, kind{})
	if err != nil {
		return err
	}
	defer s.end()
	for _, open := range []int{0, 1, 50, 1000} {
		o := order{Window: pick(w.long, 10*time.Second, 4*time.Second), Workers: 128, Rate: 300, Size: 512, Open: open}
		m, err := s.measure(o, catchUp)
		if err != nil {
			return err
		}
		w.add(round, "slow", fmt.Sprintf("%d open", open), c.name,
			"committed/s", m.committed,
			"p50 ms", quantile(m.latencies, m.missing, 0.5),
			"p99 ms", quantile(m.latencies, m.missing, 0.99),
			"CPU µs per message", perMessage(m.cpu.total(), m.came))
	}
	return nil
}
