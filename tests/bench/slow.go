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
			for _, c := range w.chosen(ledger, afterCommit, outboxPoll) {
				if c == outboxPoll && !w.long {
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
		if open > 0 {
			if _, err := s.do(order{Open: open, Size: 512}); err != nil {
				return err
			}
		}
		m, err := s.measure(order{Window: pick(w.long, 10*time.Second, 4*time.Second), Workers: 128, Rate: 300, Size: 512}, catchUp)
		if err != nil {
			return err
		}
		if open > 0 {
			if _, err := s.do(order{Close: true}); err != nil {
				return err
			}
		}
		w.add(round, "slow", fmt.Sprintf("%d open", open), c.name, append([]any{
			"committed/s", m.committed,
			"p50 ms", quantile(m.latencies, m.missing, 0.5),
			"p99 ms", quantile(m.latencies, m.missing, 0.99),
		}, m.cpu.perMessage(m.came)...)...)
	}
	return nil
}
