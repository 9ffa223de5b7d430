// Package pgxsender is package sender for programs that use PostgreSQL through pgx itself and not
// through database/sql.
//
//	ledger, err := pgxbridge.Open(ctx, pool) // a *pgxpool.Pool
//	s, err := sender.New(ledger, broker, nil)
//	err = pgxsender.InTx(ctx, s, pool, pgx.TxOptions{}, func(tx *pgxsender.Tx) error {
//		if _, err := tx.Exec(ctx, `INSERT INTO orders …`); err != nil {
//			return err
//		}
//		_, err := tx.Send(bridge.Message{Exchange: "orders", RoutingKey: "order.placed", …})
//		return err
//	})
//
// InTx begins and ends the transaction. If you do that yourself, call the sender's own SendTx(ctx,
// pgxbridge.Tx(tx), …), or SendBatch, which saves a round trip: the INSERT of the IDs travels with
// your own statements. Package sender describes the guarantees and the errors.
package pgxsender
