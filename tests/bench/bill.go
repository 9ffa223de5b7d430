package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// billScenario asks what a message costs the database.
var billScenario = scenario{
	name:     "bill",
	what:     "what a message costs PostgreSQL until it is delivered and forgotten, beyond the business row: bytes of WAL, rows written (inserted, updated, deleted) and left dead, pages accessed, and pages of tables and indexes at the end",
	headline: headline{metric: "WAL bytes", lower: true},
	trials: func(config) (trials []trial) {
		for _, size := range []int{512, 8 << 10, 64 << 10} {
			for _, c := range []*contender{ledger, outboxPoll, watermillEight, oagudoOptimistic} {
				if size == 512 || c == ledger || c == outboxPoll {
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
	if w.business == 0 { // the bare transaction is what the others are charged beyond
		b, err := w.charge(ctx, bare, size)
		if err != nil {
			return err
		}
		w.business = b.wal
	}
	b, err := w.charge(ctx, c, size)
	if err != nil {
		return err
	}
	add(bytes(size),
		"WAL bytes", b.wal-w.business,
		"rows written", b.written,
		"dead rows", b.dead,
		"pages accessed", b.accessed,
		"pages left", b.pages)
	return nil
}

// A bill is what one message cost; but for the WAL without the business table.
type bill struct {
	wal, written, dead, accessed, pages float64
}

// charge has a contender send messages, waits for all that follows, and adds up. Vacuuming
// would make it a matter of luck what is left.
func (w *world) charge(ctx context.Context, c *contender, size int) (b bill, err error) {
	if err := w.administer(ctx, "ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()"); err != nil {
		return b, err
	}
	err = w.with(ctx, c, kind{}, func(s *session) error { return s.charge(ctx, size, &b) })
	return b, errors.Join(err, w.administer(context.WithoutCancel(ctx), "ALTER SYSTEM RESET autovacuum", "SELECT pg_reload_conf()"))
}

func (s *session) charge(ctx context.Context, size int, b *bill) error {
	n := s.w.backlog / pick(size > 8<<10, 150, 50)
	// First some messages that pay for what only the first ones do, such as whole
	// pages in the WAL after the checkpoint.
	warm := order{Workers: 8, Size: size, Stop: max(1, n/5)}
	if err := s.doAndSettle(ctx, warm); err != nil {
		return err
	}
	before, err := s.wal(ctx)
	if err != nil {
		return err
	}
	if err := s.doAndSettle(ctx, order{Workers: 8, Size: size, Stop: n}); err != nil {
		return err
	}
	after, err := s.wal(ctx)
	if err != nil {
		return err
	}
	b.wal = float64(after-before) / float64(n)
	// Sessions tell what they did at the latest when they end.
	s.stopProcesses()
	if err := s.alone(ctx); err != nil {
		return err
	}
	row := s.db.QueryRowContext(ctx, `SELECT
	coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0),
	coalesce(sum(n_dead_tup), 0),
	coalesce(sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0)
		+ coalesce(toast_blks_read + toast_blks_hit, 0) + coalesce(tidx_blks_read + tidx_blks_hit, 0)), 0),
	coalesce(sum(pg_total_relation_size(relid)) / 8192, 0)
FROM pg_stat_user_tables JOIN pg_statio_user_tables USING (relid, schemaname, relname) WHERE relname <> 'orders'`)
	if err := row.Scan(&b.written, &b.dead, &b.accessed, &b.pages); err != nil {
		return fmt.Errorf("read statistics: %w", err)
	}
	for _, sum := range []*float64{&b.written, &b.dead, &b.accessed, &b.pages} {
		*sum /= float64(n + warm.Stop)
	}
	return nil
}

// doAndSettle has an order carried out, and waits until its messages have come and
// the database writes no more; but not for ever, as some poll by writing.
func (s *session) doAndSettle(ctx context.Context, o order) error {
	out, err := s.do(o)
	if err != nil {
		return err
	}
	if missing := s.await(out); missing > 0 {
		return fmt.Errorf("%d messages did not come", missing)
	}
	const still, longest = 300 * time.Millisecond, 5 * time.Second
	enough := time.After(longest)
	for last := int64(-1); ; {
		at, err := s.wal(ctx)
		if err != nil {
			return err
		}
		if at == last {
			return nil
		}
		last = at
		select {
		case <-time.After(still):
		case <-enough:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// alone waits until no other session of the database is left.
func (s *session) alone(ctx context.Context) error {
	s.db.SetMaxIdleConns(1) // of our own, too
	for others := 1; ; {
		err := s.db.QueryRowContext(ctx, `SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()`).Scan(&others)
		if err != nil {
			return fmt.Errorf("count sessions: %w", err)
		}
		if others == 0 {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// wal is how many bytes the server has written to its log so far.
func (s *session) wal(ctx context.Context) (int64, error) {
	var n int64
	err := s.db.QueryRowContext(ctx, `SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn`).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("read WAL position: %w", err)
	}
	return n, nil
}
