package main

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

// The demo's own tables. Times are microseconds since 1970.
const (
	// shopTables are in the shop's database, beside the ledger.
	shopTables = `CREATE TABLE orders (message_id TEXT PRIMARY KEY, worker INTEGER NOT NULL, number INTEGER NOT NULL)`

	// The diary is a database of its own, so that a rollback of the shop's transaction undoes nothing
	// there.
	diaryTables = `CREATE TABLE transactions (worker INTEGER, number INTEGER, began BIGINT, ended BIGINT, PRIMARY KEY (worker, number));
CREATE TABLE attempts (message_id TEXT PRIMARY KEY, worker INTEGER NOT NULL, number INTEGER NOT NULL);
CREATE TABLE deaths (part TEXT NOT NULL, died BIGINT NOT NULL, back BIGINT NOT NULL)`
)

// databases are the demo's three databases. post has only the gateways' tables.
type databases struct {
	shop, post, diary *database.Database
}

func openDatabases(ctx context.Context, w world) (_ *databases, err error) {
	d := new(databases)
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.shop, err = database.Create(ctx, w.Shop); err != nil {
		return nil, fmt.Errorf("shop: %w", err)
	}
	if d.post, err = database.Create(ctx, w.Post); err != nil {
		return nil, fmt.Errorf("post: %w", err)
	}
	if d.diary, err = database.Create(ctx, w.Diary); err != nil {
		return nil, fmt.Errorf("diary: %w", err)
	}
	return d, nil
}

func (d *databases) close() {
	for _, db := range []*database.Database{d.shop, d.post, d.diary} {
		if db != nil {
			_ = db.Close()
		}
	}
}

// create creates all tables except the gateways'.
func (d *databases) create(ctx context.Context) error {
	if err := d.shop.MigrateLedger(ctx); err != nil {
		return err
	}
	for db, tables := range map[*database.Database]string{d.shop: shopTables, d.diary: diaryTables} {
		if _, err := db.ExecContext(ctx, tables); err != nil {
			return fmt.Errorf("create tables: %w", err)
		}
	}
	return nil
}

// counts is the progress, by the databases and the mail server's log.
type counts struct {
	Attempted, Committed int
	Received             int // by the mail server
	Pending, Doubtful    int // in the gateways' inbox, the doubtful ones among the pending
}

func (t *theatre) counts(ctx context.Context) (c counts, err error) {
	// The later stage is counted first, so that there are never more e-mails than orders.
	c.Received = len(t.mail.receipts())
	for _, q := range []struct {
		db    *database.Database
		table string
		into  *int
	}{
		{t.dbs.shop, "orders", &c.Committed},
		{t.dbs.diary, "attempts", &c.Attempted},
	} {
		if err := q.db.GetContext(ctx, q.into, "SELECT count(*) FROM "+q.table); err != nil {
			return c, fmt.Errorf("count %s: %w", q.table, err)
		}
	}
	states, err := t.effects.Count(ctx, t.dbs.post.DB.DB)
	for state, n := range states {
		c.Pending += int(n)
		if state == pending.Doubtful {
			c.Doubtful = int(n)
		}
	}
	return c, err
}

// carried returns the number of ledger rows that carry a message.
func (d *databases) carried(ctx context.Context) (rows int, err error) {
	if err := d.shop.GetContext(ctx, &rows, `SELECT count(*) FROM bridge_ledger WHERE message IS NOT NULL`); err != nil {
		return 0, fmt.Errorf("count carried messages: %w", err)
	}
	return rows, nil
}

// noteBegin notes a transaction and its messages before it begins.
func (d *databases) noteBegin(ctx context.Context, worker, number int, ids []uuid.UUID) error {
	tx, err := d.diary.BeginTxx(ctx, nil)
	if err != nil {
		return fmt.Errorf("write diary: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, `INSERT INTO transactions (worker, number) VALUES (?, ?)`, worker, number); err != nil {
		return fmt.Errorf("write diary: %w", err)
	}
	for _, id := range ids {
		if err := insert(ctx, tx, `INSERT INTO attempts (message_id, worker, number) VALUES (?, ?, ?)`, id.String(), worker, number); err != nil {
			return fmt.Errorf("write diary: %w", err)
		}
	}
	return tx.Commit()
}

// noteEnd notes after a transaction when it began and ended.
func (d *databases) noteEnd(ctx context.Context, worker, number int, began, ended time.Time) error {
	_, err := d.diary.ExecContext(ctx, `UPDATE transactions SET began = ?, ended = ? WHERE worker = ? AND number = ?`,
		began.UnixMicro(), ended.UnixMicro(), worker, number)
	if err != nil {
		return fmt.Errorf("write diary: %w", err)
	}
	return nil
}

// noteDeath notes that a process was killed, and from when its successor worked.
func (d *databases) noteDeath(ctx context.Context, part string, died, back time.Time) error {
	return insert(ctx, d.diary, `INSERT INTO deaths (part, died, back) VALUES (?, ?, ?)`, part, died.UnixMicro(), back.UnixMicro())
}

// tried returns the number of transactions that a shop process has begun.
func (d *databases) tried(ctx context.Context, worker int) (n int, err error) {
	err = d.diary.GetContext(ctx, &n, `SELECT count(*) FROM transactions WHERE worker = ?`, worker)
	return n, err
}

// inserter is a database or a transaction.
type inserter interface {
	sqlx.ExecerContext
	Rebind(query string) string
}

func insert(ctx context.Context, db inserter, statement string, values ...any) error {
	if _, err := db.ExecContext(ctx, db.Rebind(statement), values...); err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	return nil
}
