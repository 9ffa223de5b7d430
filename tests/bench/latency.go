package main

import (
	"context"
	"fmt"
	"math"
)

// latencyScenario has transactions begin at a steady rate.
var latencyScenario = scenario{
	name:     "latency",
	what:     "from the return of COMMIT to the arrival at the target's consumer, at a steady rate of transactions with one message of 512 bytes",
	headline: headline{metric: "p99 ms", lower: true},
	run: func(ctx context.Context, w *world) error {
		points := w.rates.or(100, 300, 500)
		for round := range pick(w.long, w.rounds, 1) {
			for _, c := range w.chosen(ledger, outboxNotify, outboxPoll, afterCommit) {
				if err := w.latency(ctx, round, points, len(w.rates) == 0, c); err != nil {
					return err
				}
			}
			for _, c := range w.chosen(watermillEight, oagudoOptimistic, outboxHint) {
				if err := w.latency(ctx, round, w.few(w.rates, points, 300), w.long, c); err != nil {
					return err
				}
			}
		}
		return nil
	},
}

// latency measures one contender at some rates, and at half of its most.
func (w *world) latency(ctx context.Context, round int, rates []int, half bool, c *contender) error {
	s, err := w.begin(ctx, c, kind{})
	if err != nil {
		return err
	}
	defer s.end()
	for _, rate := range rates {
		if err := s.latencyAt(round, fmt.Sprintf("%d/s", rate), float64(rate)); err != nil {
			return err
		}
	}
	if !half {
		return nil
	}
	most := median(w.report.values("live", concurrent(fullLoad), c.name, "delivered/s"))
	if math.IsNaN(most) { // it was not asked for
		m, err := s.measure(order{Window: w.window, Workers: fullLoad, Size: 512}, catchUp)
		if err != nil {
			return err
		}
		most = m.delivered
	}
	return s.latencyAt(round, "half of its most", most/2)
}

func (s *session) latencyAt(round int, what string, rate float64) error {
	m, err := s.measure(order{Window: s.w.window, Workers: 128, Rate: rate, Size: 512}, catchUp)
	if err != nil {
		return err
	}
	s.w.add(round, "latency", what, s.contender.name, append([]any{
		"committed/s", m.committed,
		"p50 ms", quantile(m.latencies, m.missing, 0.5),
		"p99 ms", quantile(m.latencies, m.missing, 0.99),
		"p99.9 ms", rare(m.latencies, m.missing, 0.999),
		"transaction p50 ms", quantile(m.Took, 0, 0.5),
	}, m.cpu.perMessage(m.came)...)...)
	return nil
}
