package main

import (
	"context"
	"fmt"
	"time"
)

// turns is the number of turns of each contender in one measurement of takeTurns.
const turns = 10

// takeTurns measures contenders side by side, in turns so short that the machine's other load slows
// all contenders equally. A turn ends when its messages have come; its rates are measured until
// then.
func takeTurns(k kind, points []point, contenders ...*contender) func(context.Context, *world, adder) error {
	return func(ctx context.Context, w *world, add adder) error {
		var sessions []*session
		defer func() {
			for _, s := range sessions {
				s.end()
			}
		}()
		for _, c := range contenders {
			s, err := w.begin(ctx, c, k)
			if err != nil {
				return err
			}
			sessions = append(sessions, s)
		}
		if w.test {
			points = points[:1]
		}
		for _, p := range points {
			p.order.Window = w.window / turns
			sums := make([]turn, len(sessions))
			for round := range turns + 1 {
				for i, s := range sessions {
					if ctx.Err() != nil {
						return ctx.Err()
					}
					one, err := s.turn(p.order)
					if err != nil {
						return fmt.Errorf("%s: %s: %w", p.what, s.contender.name, err)
					}
					if round > 0 { // the first round warms up
						sums[i].add(one)
					}
				}
			}
			for i, s := range sessions {
				add(s.contender.name, p.what, sums[i].values()...)
			}
		}
		for _, s := range sessions {
			if err := s.check(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}

// A turn is the measurement of one turn, or the sum of several.
type turn struct {
	measurement
	sending, delivering time.Duration // until the last COMMIT and the last arrival
}

func (s *session) turn(o order) (t turn, err error) {
	before := readProcessorTimes(s.application.cmd.Process.Pid, s.relay)
	if t.outcome, err = s.do(o); err != nil {
		return t, err
	}
	if t.latencies, t.missing = s.target.wait(t.Messages, time.Minute); t.missing > 0 {
		return t, fmt.Errorf("%d messages did not come", t.missing)
	}
	t.cpu = readProcessorTimes(s.application.cmd.Process.Pid, s.relay).minus(before)
	last := t.To
	for i, m := range t.Messages {
		last = max(last, m.Committed+instant(t.latencies[i]))
	}
	t.sending, t.delivering = t.To.sub(t.From), last.sub(t.From)
	return t, nil
}

func (t *turn) add(one turn) {
	t.Took = append(t.Took, one.Took...)
	t.latencies = append(t.latencies, one.latencies...)
	t.Committed, t.came = t.Committed+one.Committed, t.came+len(one.Messages)
	t.cpu = t.cpu.plus(one.cpu)
	t.sending, t.delivering = t.sending+one.sending, t.delivering+one.delivering
	t.committed = float64(t.came) / t.sending.Seconds()
	t.delivered = float64(t.came) / t.delivering.Seconds()
}
