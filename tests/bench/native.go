package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/pgxbridge"
)

// nativeSuffix ends the names of contenders on pgx.
const nativeSuffix = "-pgx"

var (
	ledgerPgx      = onPgx(ledger)
	ledgerEarlyPgx = onPgx(ledgerEarly)
	outboxPollPgx  = onPgx(outboxPoll)
	afterCommitPgx = onPgx(afterCommit)
)

// onPgx returns a contender whose application uses PostgreSQL through pgx, without database/sql.
// The BEGIN of each of them travels with the first statement, even if that is a query.
// pgxsender.InTx however begins with its own round trip.
func onPgx(c *contender) *contender {
	native := *c
	native.name, native.label, native.pgx = c.name+nativeSuffix, "", true
	native.what = c.name + " on pgx instead of database/sql; the BEGIN travels with the first statement"
	return &native
}

func (b business) aroundPgx(ctx context.Context, decide func() bool, fn func(tx bridge.Tx) error) (instant, error) {
	conn, err := b.pool.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Release() // Release closes a connection that is still in a transaction
	tx := &nativeTx{conn: conn}
	if err = fn(tx); err == nil && decide() {
		if err = tx.tx.Commit(ctx); err == nil {
			return now(), nil
		}
	}
	if tx.tx != nil {
		_ = tx.tx.Rollback(context.WithoutCancel(ctx))
	}
	return 0, err
}

// nativeTx is a transaction that begins with its first statement.
type nativeTx struct {
	conn *pgxpool.Conn
	tx   pgx.Tx // nil before the first statement
}

func (t *nativeTx) Exec(ctx context.Context, statement string, args ...any) (changed int64, err error) {
	if t.tx != nil {
		return pgxbridge.Tx(t.tx).Exec(ctx, statement, args...)
	}
	batch := new(pgx.Batch)
	batch.BeginTx(pgx.TxOptions{})
	batch.Queue(statement, args...).Exec(func(tag pgconn.CommandTag) error {
		changed = tag.RowsAffected()
		return nil
	})
	results := t.conn.SendBatch(ctx, batch)
	t.tx = results.Tx()
	return changed, results.Close()
}

func (t *nativeTx) Query(ctx context.Context, statement string, args ...any) (rows bridge.Rows, err error) {
	if t.tx != nil {
		return pgxbridge.Tx(t.tx).Query(ctx, statement, args...)
	}
	batch := new(pgx.Batch)
	batch.BeginTx(pgx.TxOptions{})
	batch.Queue(statement, args...)
	results := t.conn.SendBatch(ctx, batch)
	t.tx = results.Tx()
	found, err := results.Query()
	if err != nil {
		return nil, errors.Join(err, results.Close())
	}
	return batchRows{found, results}, nil
}

// batchRows are rows that close their batch when they are closed.
type batchRows struct {
	pgx.Rows
	results pgx.BatchResults
}

func (r batchRows) Close() {
	r.Rows.Close()
	_ = r.results.Close()
}
