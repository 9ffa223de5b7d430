package main

import (
	"context"
	"fmt"
)

// orderedScenario has messages keep the order of their keys. An outbox written by hand keeps
// it with one worker in its relay, for all messages alike.
var orderedScenario = scenario{
	name:     "ordered",
	what:     "32 transactions at once with a message of 512 bytes each: without order keys, over 1,000 keys in one, two and eight ordered queues, all of one key; an outbox with one worker is in order too",
	headline: headline{metric: "delivered/s"},
	run: func(ctx context.Context, w *world) error {
		for round := range w.rounds {
			for _, k := range []struct {
				what         string
				keys, shards int
				contender    *contender
			}{
				{"no keys", 0, 0, ledger},
				{"1,000 keys, one queue", 1000, 1, ledger},
				{"1,000 keys, two queues", 1000, 2, ledger},
				{"1,000 keys, eight queues", 1000, 8, ledger},
				{"one key", 1, 1, ledger},
				{"one worker", 0, 0, outboxPoll},
			} {
				if err := w.orderedRound(ctx, round, k.what, kind{keys: k.keys, shards: k.shards}, k.contender); err != nil {
					return fmt.Errorf("%s: %w", k.what, err)
				}
			}
		}
		return nil
	},
}

func (w *world) orderedRound(ctx context.Context, round int, what string, k kind, c *contender) error {
	s, err := w.begin(ctx, c, k)
	if err != nil {
		return err
	}
	defer s.end()
	m, err := s.measure(order{Window: w.window, Workers: fullLoad, Size: 512}, catchUp)
	if err != nil {
		return err
	}
	w.add(round, "ordered", what, c.name,
		"committed/s", m.committed,
		"delivered/s", m.delivered,
		"transaction p50 ms", quantile(m.Took, 0, 0.5),
		"transaction p99 ms", quantile(m.Took, 0, 0.99),
		"commit to target p50 ms", quantile(m.latencies, m.missing, 0.5),
		"CPU µs per message", perMessage(m.cpu.total(), m.Committed))
	return nil
}
