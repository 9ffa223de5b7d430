package pgxbridge

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/twoqueue/twoqueue/bridge/postgres"
)

// Open is postgres.Open on a pool of pgx. Record runs natively in the caller's
// transaction, through Tx. The verifier's own statements use the same pool through pgx's
// stdlib. A verifier needs verifier.Options.Connections, and verifier.New refuses a smaller pool;
// pgxpool's default is 4 (pool_max_conns). The pool stays the caller's; close the ledger's DB() before it.
func Open(ctx context.Context, pool *pgxpool.Pool) (*postgres.Ledger, error) {
	return Schema("").Open(ctx, pool)
}

// A Schema is a postgres.Schema: of the bridge's tables.
type Schema string

// Open does what the function of this name does, with the ledger's tables in the schema.
func (s Schema) Open(ctx context.Context, pool *pgxpool.Pool) (*postgres.Ledger, error) {
	db := open(pool)
	ledger, err := postgres.Schema(s).Open(ctx, db)
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	return ledger, nil
}

// OpenInbox is postgres.OpenInbox on a pool of pgx. The pool stays the caller's; close the
// inbox's DB() before it. Except for HandleTx, pass DB() to a guard's methods.
func OpenInbox(ctx context.Context, pool *pgxpool.Pool) (*postgres.Inbox, error) {
	return Schema("").OpenInbox(ctx, pool)
}

// OpenInbox does what the function of this name does, with the inbox's tables in the schema.
func (s Schema) OpenInbox(ctx context.Context, pool *pgxpool.Pool) (*postgres.Inbox, error) {
	db := open(pool)
	inbox, err := postgres.Schema(s).OpenInbox(ctx, db)
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	return inbox, nil
}

// open tells database/sql how many connections the pool allows, so that DB().Stats() says so.
func open(pool *pgxpool.Pool) *sql.DB {
	db := stdlib.OpenDBFromPool(pool)
	db.SetMaxOpenConns(int(pool.Config().MaxConns))
	return db
}
