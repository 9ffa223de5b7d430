// Package sender stages messages that go out if and only if the transaction they
// belong to commits.
//
//	s, err := sender.New(ledger, broker, &sender.Options{Queue: "twoqueue"})
//	...
//	err = s.InTx(ctx, db, nil, func(tx *sender.Tx) error {
//		if _, err := tx.ExecContext(ctx, `INSERT INTO orders …`); err != nil {
//			return err
//		}
//		_, err := tx.Send(bridge.Message{Exchange: "orders", RoutingKey: "order.placed", …})
//		return err
//	})
//
// InTx begins and ends the transaction. Where you do that yourself, SendTx works
// in it, be it a *sql.Tx or a *sqlx.Tx; a *sql.DB does not compile.
//
// # What it does
//
// It inserts the messages' IDs into the ledger with one statement, publishes all
// messages to the staging queue, and waits once for all confirms. Two rules make
// that safe (DESIGN section 4):
//
//  1. Record before publish: the INSERT has succeeded before the first byte of a
//     message leaves. So a message that the verifier finds in no row belongs to a
//     transaction that did not commit.
//  2. COMMIT only after every message of the transaction is confirmed and none was
//     returned. So whatever has committed is in the broker.
//
// Between the two the transaction is open and holds its locks for one round trip
// to the broker, at most for Options.Timeout. So send as late in the transaction
// as you can; InTx does it last.
//
// The transaction and the ledger must be in the same database.
//
// # Groups
//
// While a message waits for its confirm, those of concurrent transactions gather,
// and travel to the staging queue as one message, which costs the broker a fraction.
// Every transaction waits for the confirm of what carries its own messages, and the
// verifier judges each message by itself. What fails, fails for all that travelled
// together, and each of them rolls back. When there is no company nobody waits for
// it. Options.GroupMessages turns it off.
//
// # When the broker is out
//
// By default sending fails then, and you roll back. With Options.Parking set to
// ParkOnOutage the messages are stored in the database instead, by the same
// transaction, which may commit; a verifier stages them when the broker is back.
// Make the broker with bridge.NewBroker, so that your process can start during an
// outage. A message whose confirm was only late may then be delivered twice, with the
// same ID. ParkAlways makes of this a plain transactional outbox.
//
// # What to do on an error
//
// Roll back; InTx has done so. Nothing of the transaction will be delivered then,
// whatever the broker has taken: the verifier finds no row and drops it. Then:
//
//	bridge.Retryable(err)      no broker, blocked, full queue, no confirm in time:
//	                           begin again with a new transaction, later
//	bridge.ErrReturned         the staging queue is not there: Topology.Declare
//	bridge.ErrInvalidMessage   this message can never be sent; nothing was touched
//	bridge.ErrDuplicateID      this ID was sent before, or twice in one call
//	bridge.ErrOtherLedger      the transaction is one of another database
//	bridge.ErrCredentials      the broker refuses the login
//	sender.ErrCommitUnknown    from InTx only: the COMMIT's answer is missing. It
//	                           may have committed, and is delivered then: look
//	                           before you repeat it
//
// A *bridge.PublishError in the chain names the message. When you call Commit
// yourself after SendTx, its errors are yours to judge: one that is not the
// database's own refusal is an unknown commit too.
//
// A process that dies needs nothing: the database rolls back what was open, and
// what had committed is forwarded.
package sender
