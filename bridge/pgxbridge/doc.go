// Package pgxbridge is for programs that use PostgreSQL through pgx itself and not through
// database/sql. Only who imports it links pgx.
//
//	ledger, err := pgxbridge.Open(ctx, pool) // a *pgxpool.Pool
//	s, err := sender.New(ledger, broker, nil)
//	tx, err := pool.Begin(ctx)
//	…
//	_, err = s.SendTx(ctx, pgxbridge.Tx(tx), bridge.Message{RoutingKey: "emails", …})
//	err = tx.Commit(ctx)
//
// Package pgxsender begins and ends the transaction itself, and spares round trips. A
// verifier works on the ledger that Open returns. A receiver works on the inbox that
// OpenInbox returns: idempotency.Guard.HandleTx runs in a transaction of pgx. Everything
// that package postgres says of the database, its rights, poolers and settings holds here.
package pgxbridge
