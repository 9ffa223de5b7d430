package main

import (
	"context"
	"fmt"
	"time"
)

// liveScenario has transactions commit one message each, as fast as they can.
var liveScenario = scenario{
	name:     "live",
	what:     "committed and delivered messages per second with 1, 8, 32 and 128 concurrent transactions of one message of 512 bytes; at 32 also with messages that are staged before the business row, and on pgx",
	headline: headline{metric: "delivered/s"},
	run: func(ctx context.Context, w *world) error {
		points := w.workers.or(1, 8, 32, 128)
		for round := range w.rounds {
			for _, c := range w.chosen(ledger, outboxPoll, afterCommit) {
				if err := w.live(ctx, round, points, c); err != nil {
					return err
				}
			}
			for _, c := range w.chosen(ledgerEarly, ledgerPgx, ledgerEarlyPgx, outboxPollPgx, afterCommitPgx) {
				if err := w.live(ctx, round, w.few(w.workers, points, fullLoad), c); err != nil {
					return err
				}
			}
			if !w.long && round > 0 {
				continue
			}
			for _, c := range w.chosen(watermillEight, oagudoOptimistic, outboxHint, outboxNotify) {
				if err := w.live(ctx, round, w.few(w.workers, points, fullLoad), c); err != nil {
					return err
				}
			}
		}
		return nil
	},
}

// fullLoad is the number of workers at which all contenders are compared.
const fullLoad = 32

// catchUp is how long what was committed may take to arrive.
const catchUp = 3 * time.Second

// live measures one contender under full load.
func (w *world) live(ctx context.Context, round int, workers []int, c *contender) error {
	s, err := w.begin(ctx, c, kind{})
	if err != nil {
		return err
	}
	defer s.end()
	for _, n := range workers {
		m, err := s.measure(order{Window: w.window, Workers: n, Size: 512}, catchUp)
		if err != nil {
			return err
		}
		w.addLive(round, concurrent(n), c, m)
	}
	return nil
}

func (w *world) addLive(round int, what string, c *contender, m measurement) {
	n := m.came
	w.add(round, "live", what, c.name, append([]any{
		"committed/s", m.committed,
		"delivered/s", m.delivered,
		"commit to target p50 ms", quantile(m.latencies, m.missing, 0.5),
		"p99 ms", quantile(m.latencies, m.missing, 0.99),
		"transaction p50 ms", quantile(m.Took, 0, 0.5),
	}, m.cpu.perMessage(n)...)...)
}

func concurrent(n int) string { return fmt.Sprintf("%d at once", n) }
