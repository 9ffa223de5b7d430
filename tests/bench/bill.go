package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// billScenario measures the WAL that a message costs the database.
var billScenario = scenario{
	name:     "bill",
	what:     "the cost of a message on PostgreSQL until it is delivered and forgotten, beyond the business row: bytes of WAL",
	headline: headline{metric: "WAL bytes", lower: true},
	trials: func(config) (trials []trial) {
		for _, size := range []int{512, 8 << 10, 64 << 10} {
			for _, c := range []*contender{ledger, ledgerCarried, outboxPoll, watermillEight, oagudoOptimistic} {
				if size == 512 || c == ledger || c == ledgerCarried || c == outboxPoll {
					trials = append(trials, trial{name: c.name, seldom: true, run: func(ctx context.Context, w *world, add adder) error {
						return w.bill(ctx, c, size, add)
					}})
				}
			}
		}
		return trials
	},
}

func (w *world) bill(ctx context.Context, c *contender, size int, add adder) error {
	if w.business == 0 { // the cost of a bare transaction is subtracted from the others
		var err error
		if w.business, err = w.charge(ctx, bare, size); err != nil {
			return err
		}
	}
	wal, err := w.charge(ctx, c, size)
	if err == nil {
		add(c.name, bytes(size), "WAL bytes", wal-w.business)
	}
	return err
}

// charge has a contender send messages, waits until they are delivered and forgotten, and returns
// the bytes of WAL per message. Autovacuum is off meanwhile, since its WAL falls on measurements at
// random.
func (w *world) charge(ctx context.Context, c *contender, size int) (bytes float64, err error) {
	if err := w.administer(ctx, "ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()"); err != nil {
		return 0, err
	}
	err = w.with(ctx, c, kind{}, func(s *session) error {
		n := w.backlog / pick(size > 8<<10, 150, 50)
		// The first messages also pay for one-time costs, such as whole pages in the WAL after the
		// checkpoint.
		before, err := s.doAndSettle(ctx, order{Workers: 8, Size: size, Stop: max(1, n/5)})
		if err != nil {
			return err
		}
		after, err := s.doAndSettle(ctx, order{Workers: 8, Size: size, Stop: n})
		bytes = float64(after-before) / float64(n)
		return err
	})
	return bytes, errors.Join(err, w.administer(context.WithoutCancel(ctx), "ALTER SYSTEM RESET autovacuum", "SELECT pg_reload_conf()"))
}

// doAndSettle has an order carried out, and waits until its messages have come and the database
// writes no more. It waits 5 s at most, since some contenders poll by writing. It returns the WAL
// position.
func (s *session) doAndSettle(ctx context.Context, o order) (at int64, err error) {
	out, err := s.do(o)
	if err != nil {
		return 0, err
	}
	if missing := s.await(out); missing > 0 {
		return 0, fmt.Errorf("%d messages did not come", missing)
	}
	const still, longest = 300 * time.Millisecond, 5 * time.Second
	enough := time.After(longest)
	for last := int64(-1); ; {
		err := s.db.QueryRowContext(ctx, `SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn`).Scan(&at)
		if err != nil {
			return 0, fmt.Errorf("read WAL position: %w", err)
		}
		if at == last {
			return at, nil
		}
		last = at
		select {
		case <-time.After(still):
		case <-enough:
			return at, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}
