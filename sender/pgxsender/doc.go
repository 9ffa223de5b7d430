// Package pgxsender is package sender for programs that use PostgreSQL through pgx itself
// and not through database/sql.
//
//	ledger, err := pgxbridge.Open(ctx, pool) // a *pgxpool.Pool
//	s, err := sender.New(ledger, broker, nil)
//	err = pgxsender.InTx(ctx, s, pool, pgx.TxOptions{}, func(tx *pgxsender.Transaction) error {
//		if _, err := tx.Exec(ctx, `INSERT INTO orders …`); err != nil {
//			return err
//		}
//		_, err := tx.Send(bridge.Message{Exchange: "orders", RoutingKey: "order.placed", …})
//		return err
//	})
//
// InTx begins and ends the transaction. Where you do that yourself, the sender's own
// SendTx(ctx, pgxbridge.Tx(tx), …) works in it, and SendBatch spares a round trip there: the
// INSERT of the IDs travels with statements of the caller's. What is promised, what happens
// at a crash and what to do on an error is in package sender.
package pgxsender
