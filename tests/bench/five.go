package main

import (
	"context"
	"fmt"
)

// fiveScenario has transactions that do something else too, so that the broker's confirm
// can take its time beside that.
var fiveScenario = scenario{
	name:     "five",
	what:     "how long a transaction of five statements (two lookups by key, two INSERTs, an UPDATE) and one message of 512 bytes takes, from BEGIN to the return of COMMIT, at 1, 8 and 32 at once (there the processors are the limit), and at a steady 200 a second: without a message, with an outbox's row, with the staging at the end and early; after-commit publishes after that time",
	headline: headline{metric: "p50 ms", lower: true, ours: ledgerEarly.name},
	run: func(ctx context.Context, w *world) error {
		for round := range w.rounds {
			for _, c := range w.chosen(ledger, ledgerEarly, outboxPoll, afterCommit, bare, ledgerEarlyPgx, outboxPollPgx, afterCommitPgx) {
				if err := w.fiveRound(ctx, round, c); err != nil {
					return err
				}
			}
		}
		return nil
	},
}

func (w *world) fiveRound(ctx context.Context, round int, c *contender) error {
	s, err := w.begin(ctx, c, kind{five: true})
	if err != nil {
		return err
	}
	defer s.end()
	for _, n := range w.workers.or(1, 8, fullLoad) {
		if err := s.five(round, concurrent(n), order{Window: w.window, Workers: n, Size: 512}); err != nil {
			return err
		}
	}
	for _, rate := range w.rates.or(200) {
		if err := s.five(round, fmt.Sprintf("%d/s", rate), order{Window: w.window, Workers: 128, Rate: float64(rate), Size: 512}); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) five(round int, what string, o order) error {
	m, err := s.measure(o, catchUp)
	if err != nil {
		return err
	}
	s.w.add(round, "five", what, s.contender.name, append([]any{
		"p50 ms", quantile(m.Took, 0, 0.5),
		"p99 ms", quantile(m.Took, 0, 0.99),
		"committed/s", m.committed,
		"delivered/s", m.delivered,
		"commit to target p50 ms", quantile(m.latencies, m.missing, 0.5),
	}, m.cpu.perMessage(m.Committed)...)...)
	return nil
}
