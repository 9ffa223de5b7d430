// Package sender stages messages that go out if and only if the transaction they
// belong to commits.
//
//	ledger, err := postgres.Open(ctx, db) // or sqlserver, mysql, sqlite
//	broker, err := bridge.Dial(ctx, "amqp://shop:secret@localhost/", nil)
//	s, err := sender.New(ledger, broker, nil)
//	err = s.InTx(ctx, db, nil, func(tx *sender.Tx) error {
//		if _, err := tx.ExecContext(ctx, `INSERT INTO orders …`); err != nil {
//			return err
//		}
//		_, err := tx.Send(bridge.Message{Exchange: "orders", RoutingKey: "order.placed", …})
//		return err
//	})
//
// InTx begins and ends the transaction. Where you do that yourself, SendTx works in it:
// SendTx(ctx, bridge.SQL(tx), …) in a *sql.Tx or a *sqlx.Tx; a *sql.DB does not compile.
// bridge.SQL says what to pass for other libraries. The examples are
// whole programs: for PostgreSQL, SQL Server, sqlx, a table of one's own, staging early,
// and with parking.
//
// The ledger's tables (package migrate, or verifier -migrate) are in the database of the
// transaction. The queues are made by the verifier, which must run for anything to
// arrive: package verifier says what becomes of a message. Package bridge is the
// protocol, with its words, its rules, and what happens at each crash.
//
// # What it does
//
// SendTx inserts the messages' IDs into the ledger (with an own table, it looks that
// their rows are there), publishes all messages to the staging queue, and waits once for
// all confirms. Rules 1 and 2 of package bridge make that safe: the INSERT has succeeded
// before the first byte of a message leaves, and SendTx returns nil only if every message
// is confirmed and none was returned, or all are parked (see below).
//
// In between the transaction is open and holds its locks for a round trip to the
// broker; Options.Timeout says for how long at most. So send as late in the transaction as you can, as InTx does, or stage early.
//
// # Staging early
//
// Tx.Stage, inside InTx, and StageTx, in a transaction of yours, record the messages and
// begin to publish them at once. The broker's confirm takes its time while the
// transaction's other statements run. InTx waits for what is left of it before it commits.
// After StageTx you do: commit only when Wait of its result has returned nil. Rules 1 and 2
// hold as before.
//
// Stage early where the content of the message is known before the transaction's last
// statements, and these take about as long as the confirm. What it costs:
//
//   - The rows that you have locked are not locked for longer. The ledger's row is held
//     from the staging to the end of the transaction, and only the verifier waits for it.
//   - The verifier meets the message sooner, and its lookup waits for as long as the
//     transaction takes. That is cheap for milliseconds. Of a transaction that runs for
//     seconds, send at the end.
//   - A transaction that rolls back has staged for nothing: the broker has stored the
//     message, and the verifier drops it. Where many roll back, send at the end.
//
// # Groups
//
// While a message waits for its confirm, those of concurrent transactions gather,
// and travel to the staging queue as one message, which costs the broker a fraction.
// Every transaction waits for the confirm of what carries its own messages, and the
// verifier judges each message by itself. If a group fails, every transaction with a
// message in it fails, and rolls back. A message never waits for others to join it when
// none is on its way. Options.GroupMessages turns it off.
//
// # When the broker is out
//
// By default sending fails then, and you roll back. With Options.Parking set to
// ParkOnOutage the messages are stored in the database instead, by the same
// transaction, which may commit; a verifier stages them when the broker is back.
// Make the broker with bridge.NewBroker, so that your process can start during an
// outage. A message whose confirm was only late may then be delivered twice, with the
// same ID. ParkAlways turns this into a plain transactional outbox.
//
// # In order
//
// Messages with the same bridge.Message.OrderKey reach their target in order; package
// bridge says what exactly is promised. They are staged in the ordered queues
// (Options.OrderedShards), in groups too, but never parked: during an outage of the broker
// their transaction fails. A transaction with several such messages for one queue that do
// not fit into a group waits for the confirm of each group before the next. Other
// transactions' groups may go between, so that they wait for one of its groups and not for
// all.
//
// # What to do on an error
//
// Roll back; InTx has done so. Nothing of the transaction will be delivered then,
// whatever the broker has taken: the verifier finds no row and drops it. Then:
//
//	bridge.Retryable(err)      no broker, blocked, full queue, no confirm in time:
//	                           begin again with a new transaction, later, not for
//	                           ever; false once your own context is cancelled
//	bridge.Refusal(err)        not nil: the broker has closed the channel because of a
//	                           message, of this transaction or of one that travelled
//	                           with it: as a rule one above its max_message_size
//	bridge.ErrReturned         the staging queue is not there: Topology.Declare
//	bridge.ErrInvalidMessage   this message can never be sent; nothing was touched
//	bridge.ErrDuplicateID      this ID is in the ledger, or was given twice in one call
//	bridge.ErrNoRow            with an own table: insert the message's row first
//	bridge.ErrOtherLedger      the transaction is one of another database
//	bridge.ErrCredentials      the broker refuses the login
//	sender.ErrCommitUnknown    from InTx only: the COMMIT's answer is missing. It
//	                           may have committed, and is delivered then: look
//	                           before you repeat it
//
// Any other error is the database driver's. It is bridge.ErrNoSchema or bridge.ErrNotPrimary
// as well, where that is the cause. A *bridge.PublishError in
// the chain names a message. When you call Commit yourself after SendTx, its errors are
// yours to judge: one that is not the database's own refusal is an unknown commit too.
//
// A process that dies needs nothing: the database rolls back what was open, and
// what had committed is forwarded.
//
// # What it does not do
//
// It does not repeat a transaction, nor wait for the receiver, nor keep an order among
// messages without an order key. It does not see whether the target exists: an unroutable message ends in the
// dead queue (package verifier).
package sender
