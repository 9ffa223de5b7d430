package main

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/sender"
)

// ledgerWaiting is this project with its defaults, beside delayed messages that wait (kind.Waiting).
var ledgerWaiting = &contender{
	name:     "twoqueue-carried-waiting",
	what:     "this project with its defaults, one verifier, and a million delayed messages of 512 bytes in the ledger whose time does not come",
	setUp:    setUpWaiting,
	verifier: true,
	open:     ledgerCarried.open,
}

// insertWaiting inserts rows as a sender of delayed messages does. No program reads their messages.
const insertWaiting = `INSERT INTO bridge_ledger (id, recorded_at, message, stage_at)
SELECT lpad(to_hex(i), 32, '0')::uuid, t, decode(repeat(md5(i::text), 32), 'hex'), t
FROM generate_series(1, $1::int) AS i, LATERAL (SELECT now() + interval '1 day' + i * interval '1 ms') AS due (t)`

func setUpWaiting(ctx context.Context, p place, db *sql.DB) error {
	if err := setUpLedger(ctx, p, db); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, insertWaiting, p.Waiting); err != nil {
		return fmt.Errorf("insert delayed messages: %w", err)
	}
	return run(ctx, db, "VACUUM ANALYZE bridge_ledger")
}

// delayedScenario measures how much a million delayed messages slow the others, and how late
// delayed messages arrive beside them.
var delayedScenario = scenario{
	name:     "delayed",
	what:     "the cost of delayed messages in the ledger for other messages: committed and delivered per second with 1, 8 and 32 concurrent transactions of one message of 512 bytes, with a million waiting and with none, in turns within each measurement; and how long after its time a delayed message is at the target, while another million waits and 300 other messages a second are sent",
	headline: headline{metric: "delivered/s", ours: ledgerWaiting.name},
	trials: func(c config) []trial {
		k := kind{Waiting: pick(c.test, 1000, 1_000_000)}
		cost := takeTurns(k, c.atOnce(1, 8, fullLoad), ledgerCarried, ledgerWaiting)
		return []trial{{name: ledgerWaiting.name, kind: k, run: func(ctx context.Context, w *world, add adder) error {
			if err := cost(ctx, w, add); err != nil {
				return err
			}
			return w.with(ctx, ledgerWaiting, k, func(s *session) error { return s.lateness(ctx, add) })
		}}}
	},
}

// firstDelayed is the number of the first delayed message. No other message's number is as high.
const firstDelayed = 1 << 40

// lateness sends delayed messages, then others at a steady rate, and measures how long after its
// time each delayed message arrives. The database runs on this machine and reads the same clock.
func (s *session) lateness(ctx context.Context, add adder) error {
	messages, spacing, lead := 300, 20*time.Millisecond, 2*time.Second
	if s.w.test {
		messages, lead = 5, 200*time.Millisecond
	}
	ledger, err := postgres.Open(ctx, s.db)
	if err != nil {
		return err
	}
	broker, err := bridge.Dial(ctx, s.place.AMQP, nil)
	if err != nil {
		return err
	}
	defer broker.Close()
	out, err := sender.New(ledger, broker, &sender.Options{Queue: s.place.Staging})
	if err != nil {
		return err
	}
	bodies, delayed := newBodies(), make([]sent, messages)
	began, beganAt := time.Now(), now()
	err = out.InTx(ctx, s.db, nil, func(tx *sender.Tx) error {
		for i := range delayed {
			due := began.Add(lead + time.Duration(i)*spacing).Truncate(time.Millisecond)
			m := bridge.Message{RoutingKey: s.place.Target, NotBefore: due}
			m.Publishing.Body = bodies.make(firstDelayed+uint64(i), 512)
			delayed[i] = sent{firstDelayed + uint64(i), beganAt + instant(due.Sub(began))}
			if _, err := tx.Send(m); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("send delayed messages: %w", err)
	}
	s.committed += messages
	steadily := steady(300)[0].order
	steadily.Window = lead + time.Duration(messages)*spacing
	others, err := s.do(steadily)
	if err != nil {
		return err
	}
	late, missing := s.target.wait(delayed, time.Minute)
	if missing += s.await(others); missing > 0 {
		return fmt.Errorf("%d messages did not come", missing)
	}
	add(s.contender.name, fmt.Sprintf("%d delayed messages, one each %v", messages, spacing),
		"due to target p50 ms", quantile(late, 0, 0.5), "due to target p99 ms", quantile(late, 0, 0.99), "due to target max ms", quantile(late, 0, 1))
	return nil
}
