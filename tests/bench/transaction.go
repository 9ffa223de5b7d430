package main

import (
	"context"
	"fmt"
	"time"
)

// transactionScenario has one transaction after another.
var transactionScenario = scenario{
	name:     "transaction",
	what:     "how long a sender's transaction takes, from BEGIN to the return of COMMIT, one at a time: without a message, with an outbox's row, with the ledger's row and the staging",
	headline: headline{metric: "p50 ms", lower: true},
	run: func(ctx context.Context, w *world) error {
		for round := range pick(w.long, w.rounds, 1) {
			for _, c := range w.chosen(bare, outboxPoll, ledger) {
				if err := w.transactionRound(ctx, round, c); err != nil {
					return err
				}
			}
		}
		return nil
	},
}

func (w *world) transactionRound(ctx context.Context, round int, c *contender) error {
	s, err := w.begin(ctx, c, kind{})
	if err != nil {
		return err
	}
	defer s.end()
	for _, messages := range []int{1, 100} {
		for _, size := range []int{512, 64 << 10} {
			n := pick(w.long, 1000, 250) / messages
			o := order{Window: 20 * time.Second, Workers: 1, Messages: messages, Size: size, Stop: max(n, pick(w.long, 50, 10))}
			// The first large ones wait for the database to make files.
			first := o
			first.Stop = 5
			out, err := s.do(first)
			if err != nil {
				return err
			}
			s.await(out)
			m, err := s.measure(o, catchUp)
			if err != nil {
				return err
			}
			w.add(round, "transaction", fmt.Sprintf("%d × %s", messages, bytes(size)), c.name,
				"p50 ms", quantile(m.Took, 0, 0.5),
				"p99 ms", quantile(m.Took, 0, 0.99))
		}
	}
	return nil
}
