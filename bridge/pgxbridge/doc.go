// Package pgxbridge serves programs that use PostgreSQL through pgx itself and not through
// database/sql. Only programs that import it link pgx.
//
//	db := stdlib.OpenDBFromPool(pool) // a *pgxpool.Pool; stdlib is of pgx
//	err := migrate.Ledger(ctx, db, migrate.PostgreSQL)
//	err = db.Close() // the pool stays open
//	ledger, err := pgxbridge.Open(ctx, pool)
//	s, err := sender.New(ledger, broker, nil)
//	tx, err := pool.Begin(ctx)
//	…
//	_, err = s.SendTx(ctx, pgxbridge.Tx(tx), bridge.Message{RoutingKey: "emails", …})
//	err = tx.Commit(ctx)
//
// Package pgxsender begins and ends the transaction itself, and saves round trips. The ledger
// returned by Open also serves a verifier. Schema opens both in a named schema. OpenInbox returns
// an inbox for a receiver: idempotency.Deduplicator.HandleWithClaim runs in a transaction of pgx.
// Package postgres describes the database, its rights, poolers and settings; all of it applies
// here.
package pgxbridge
