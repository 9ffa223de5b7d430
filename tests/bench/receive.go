package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// receiveScenario has a receiver handle each message of a queue once.
var receiveScenario = scenario{
	name:     "receive",
	what:     "a receiver handles a backlog of messages of 512 bytes, 32 at once, each with one INSERT: idempotency's Handle and HandleTx against a dedupe table written by hand, among 1,000 keys handled before and among 200,000 (with -long 5 million), and there with a purge beside it that deletes the older half of them",
	headline: headline{metric: "handled/s", ours: receiveTx.name},
	run: func(ctx context.Context, w *world) error {
		var sessions []*session // all of them stay, since it takes long to fill an inbox
		defer func() {
			for _, s := range sessions {
				s.end()
			}
		}()
		for _, c := range w.chosen(w.receivers()...) {
			for _, keys := range []int{fewKeys, pick(w.long, 5_000_000, 200_000)} {
				s, err := w.begin(ctx, c, kind{inbox: keys})
				if err != nil {
					return err
				}
				sessions = append(sessions, s)
			}
		}
		for round := range w.rounds {
			for _, s := range sessions {
				if err := s.receiveRound(ctx, round); err != nil {
					return fmt.Errorf("%s: %w", s.contender.name, err)
				}
			}
		}
		return nil
	},
}

const (
	fewKeys = 1000
	// mostReceived is more than any receiver handles in a second. If one should after all,
	// its measurement is shorter.
	mostReceived = 6000
)

func (s *session) receiveRound(ctx context.Context, round int) error {
	keys := s.place.Inbox
	m, _, err := s.receive(ctx, nil)
	if err != nil {
		return err
	}
	s.addReceived(round, inboxOf(keys), m)
	if keys == fewKeys {
		return nil
	}
	m, purged, err := s.receive(ctx, s.contender.purge)
	if err != nil {
		return err
	}
	s.addReceived(round, inboxOf(keys)+", purge", m, "purged/s", float64(purged)/m.To.sub(m.From).Seconds())
	return nil
}

// inboxOf names an inbox by the keys that it begins with: each message adds one.
func inboxOf(keys int) string { return fmt.Sprintf("%d keys at first", keys) }

// receive fills the queue and has it handled, for as long as a window at most, with a purge
// beside it if there is one.
func (s *session) receive(ctx context.Context, purge func(context.Context, *sql.DB) (int64, error)) (m measurement, purged int64, err error) {
	n := int(mostReceived * (warmUp + s.w.window).Seconds())
	if err := feed(ctx, s.place, n); err != nil {
		return m, 0, err
	}
	if err := s.w.settle(ctx); err != nil {
		return m, 0, err
	}
	warm, err := s.do(order{Window: warmUp, Workers: fullLoad, Stop: n / 2})
	if err != nil {
		return m, 0, err
	}
	purging, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		var err error
		if purge != nil {
			purged, err = purge(purging, s.db)
		}
		ended <- err
	}()
	m, err = s.measure(order{Window: s.w.window, Workers: fullLoad, Stop: n - warm.Committed}, 0)
	stop()
	switch failed := <-ended; {
	case failed == nil && purge != nil:
		err = errors.Join(err, errors.New("the purge ended before the measurement: fewer rounds or shorter windows, or -long, whose inbox is larger"))
	case !errors.Is(failed, context.Canceled):
		err = errors.Join(err, failed)
	}
	return m, purged, err
}

func (s *session) addReceived(round int, what string, m measurement, more ...any) {
	among := s.w.report.rounds("receive", inboxOf(fewKeys), s.contender.name, "handled/s")
	few, ok := among[round]
	if !ok {
		few = m.committed
	}
	s.w.add(round, "receive", what, s.contender.name, append([]any{
		"handled/s", m.committed,
		"to that with few keys", m.committed / few,
		"p50 ms", quantile(m.Took, 0, 0.5),
		"p99 ms", quantile(m.Took, 0, 0.99),
		"CPU µs per message", perMessage(m.cpu.total(), m.Committed),
		"broker", perMessage(m.cpu.broker, m.Committed),
		"database", perMessage(m.cpu.database, m.Committed),
		"application", perMessage(m.cpu.application, m.Committed),
	}, more...)...)
}
