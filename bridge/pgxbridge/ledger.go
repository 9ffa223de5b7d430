package pgxbridge

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/twoqueue/twoqueue/bridge/postgres"
)

// Open is postgres.Open on a pool of pgx. Record runs natively in the caller's transaction, through
// Tx. The verifier's own statements use the same pool through pgx's stdlib. A verifier needs
// verifier.Options.Connections, and verifier.New refuses a smaller pool; pgxpool's default is 4
// (pool_max_conns). The pool stays the caller's; close the ledger's DB() before it.
func Open(ctx context.Context, pool *pgxpool.Pool) (*postgres.Ledger, error) {
	return Schema("").Open(ctx, pool)
}

// A Schema names the schema of the bridge's tables, as postgres.Schema does.
type Schema string

// Open opens the ledger whose tables are in the schema, as the function Open does.
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
// inbox's DB() before it. Except for HandleWithClaim, pass DB() to a Deduplicator's methods.
func OpenInbox(ctx context.Context, pool *pgxpool.Pool) (*postgres.Inbox, error) {
	return Schema("").OpenInbox(ctx, pool)
}

// OpenInbox opens the inbox whose tables are in the schema, as the function OpenInbox does.
func (s Schema) OpenInbox(ctx context.Context, pool *pgxpool.Pool) (*postgres.Inbox, error) {
	db := open(pool)
	inbox, err := postgres.Schema(s).OpenInbox(ctx, db)
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	return inbox, nil
}

// open passes the pool's limit of connections on to database/sql, so that DB().Stats() has it.
func open(pool *pgxpool.Pool) *sql.DB {
	db := stdlib.OpenDBFromPool(pool)
	db.SetMaxOpenConns(int(pool.Config().MaxConns))
	return db
}
