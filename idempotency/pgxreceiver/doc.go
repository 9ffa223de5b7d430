// Package pgxreceiver handles each message once in a transaction of pgx, for programs that use
// PostgreSQL through pgx itself and not through database/sql. Only programs that import it link
// pgx.
//
//	inbox, err := pgxbridge.OpenInbox(ctx, pool) // a *pgxpool.Pool
//	dedup, err := idempotency.New(inbox, "mailer", …)
//	consumer, err := idempotency.NewConsumer(broker, "emails", func(ctx context.Context, d amqp.Delivery) error {
//		return pgxreceiver.Handle(ctx, dedup, pool, pgx.TxOptions{}, d, func(ctx context.Context, tx pgx.Tx) error {
//			_, err := tx.Exec(ctx, `INSERT INTO emails …`, d.Body)
//			return err
//		})
//	}, nil)
//
// Handle begins and commits the transaction, and the BEGIN travels with the claim of the key. So a
// message costs two round trips in addition to the handler's statements, and one connection.
// idempotency.Deduplicator.HandleWithClaim, in your own transaction, checks from a second connection
// whether it was committed. Attempts, errors, acks and dead letters are as in package idempotency.
package pgxreceiver
