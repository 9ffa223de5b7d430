// Package sender stages messages that are delivered if and only if their transaction commits.
//
//	ledger, err := postgres.Open(ctx, db) // or sqlserver, mysql, sqlite
//	broker, err := bridge.NewBroker("amqp://shop:secret@localhost/", nil)
//	s, err := sender.New(ledger, broker, nil)
//	err = s.InTx(ctx, db, nil, func(tx *sender.Tx) error {
//		if _, err := tx.ExecContext(ctx, `INSERT INTO orders …`); err != nil {
//			return err
//		}
//		_, err := tx.Send(bridge.Message{Exchange: "orders", RoutingKey: "order.placed", …})
//		return err
//	})
//	err = s.Flush(ctx) // before the process ends; then broker.Close()
//
// InTx begins and commits the transaction. In a transaction of your own, call SendTx(ctx,
// bridge.SQL(tx), …) with a *sql.Tx or a *sqlx.Tx; a *sql.DB does not compile. bridge.SQL describes
// the argument for other libraries, and packages pgxsender, gormsender and bunsender have an InTx
// for theirs. The examples (example_*_test.go in this folder) are whole programs. Package
// sendertest has a Sender for unit tests, package metrics exports Sender.Stats to Prometheus, and
// package otelsender makes spans.
//
// The ledger's tables (package migrate, or verifier -migrate) must be in the transaction's
// database. A verifier must run: it makes the queues, and without it no message arrives. Package
// bridge describes the protocol: its terms, its rules, and the consequences of each crash.
//
// # How it works
//
// SendTx inserts the messages' IDs into the ledger, publishes all messages to the staging queue,
// and waits once for all confirms. By default it also inserts a copy of each small message, and
// does not wait for this message's confirm. SendTx returns nil only if each message is confirmed
// and was not returned, or its row carries it (rule 2 of package bridge). With an own table, SendTx
// inserts nothing and checks that the messages' rows exist.
//
// While SendTx waits, the transaction is open and holds its locks, for at most twice
// Options.Timeout (longer with order keys). So send as late in the transaction as you can, as InTx
// does, or stage early.
//
// The sender does not repeat a transaction, does not wait for the receiver, and does not see
// whether the target exists: the verifier sends an unroutable message to the dead queue.
//
// # Carrying
//
// The ledger's row of a message can also hold the message. Such a message is carried: it is
// published to the staging queue when its row has been inserted, but the transaction commits
// without its confirm. Options.Carry selects the messages that are carried. Messages with an order
// key never are.
//
// If a carried message is not confirmed, the sender publishes it again, until ten seconds after its
// record. If the staging queue still does not have it, or the process has died, a verifier stages the
// message from its row after the commit, some seconds late. While the broker fails or blocks, the sender writes only the
// rows, and publishes one message a second to find the end of the failure. It also writes only the
// rows while carried messages of Options.CarryPendingBytes wait for their confirms.
//
// If the broker refuses a carried message (406: it is too large), the sender publishes it once
// more, alone, and then leaves it in its row until the broker accepts such a size and a verifier
// can stage it. The log names its ID.
//
// If the transaction rolls back, also to a savepoint that was set before the message was recorded,
// the row is gone and the verifier drops the copy. If a confirm was lost or late, the message may
// be delivered twice, with the same ID.
//
// A carried message costs the database about as much as a row of an outbox table: its bytes go to
// the database's log, and the verifier deletes them with the row. Choose CarryNever if the database
// must not pay for any message or hold its content.
//
// # When the broker is out
//
// The sender considers the broker out after a publication has failed because the broker is
// unavailable, blocks, has no room in the staging queue, or does not confirm within
// Options.Timeout. It also does so while a publication has waited for its confirm for more than a
// second. (A missing queue or right, a refused login and a refused message are no outages: repair
// them.) Until a message is confirmed again, the sender carries all messages without an order key,
// unless Options.Carry is CarryNever, and their transactions commit. A transaction that was waiting
// for a confirm when the outage began fails:
//
//	                      it begins          while it is known
//	carried anyway        commits            commits
//	CarrySmall, large     fails              commits, carried
//	CarryOnOutage         fails              commits, carried
//	CarryNever            fails              fails
//	with an order key     fails              fails; at once, except with CarryNever
//
// A full staging queue, and a confirm that is only late, are no outage for messages with an order
// key, which have separate queues. bridge.Retryable returns true for the error of an outage: roll
// back, which InTx has done, and try again with a new transaction. Make the broker with
// bridge.NewBroker, so that your process can start during an outage.
//
// New needs a broker even with CarryAlways, because a verifier's session drops no message until it
// has found the row of a message that a sender published itself (rule 6 of package bridge).
//
// # Errors
//
// Roll back; InTx has done so already. Then no message of the transaction is delivered: the
// verifier finds no rows, and drops the messages that the broker has. Then look at the error:
//
//	bridge.Refusal(err)        not nil: the broker closed the channel because of a
//	                           message of this transaction, or of another one in its
//	                           group. 403: the login may not write to the exchange
//	                           (Options.Exchange; rights call the default exchange
//	                           amq.default); 404: there is no such exchange; after
//	                           403 and 404 no attempt helps. 406: usually the message
//	                           is larger than max_message_size; try again once or
//	                           twice, in case another transaction's message was
//	bridge.Retryable(err)      try again later with a new transaction, but not for ever
//	bridge.ErrReturned         the staging queue or its binding to Options.Exchange is
//	                           not there: Topology.Declare
//	bridge.ErrInvalidMessage   this message can never be sent; nothing was touched
//	bridge.ErrTxEnded          from InTx on MySQL, MariaDB and SQLite: the database
//	                           ended the transaction; its comment names the
//	                           consequences
//	sender.ErrCommitUnknown    from InTx only: check before you repeat the work
//
// The comments of bridge.ErrDuplicateID, ErrNoRow, ErrOtherLedger, ErrCredentials, ErrNoSchema,
// ErrNotPrimary and ErrReadOnly explain the rest. Any other error is the database driver's. A
// *bridge.PublishError in the chain names a message. If you call Commit yourself, you must judge
// its error: unless the database itself refused, the transaction may have committed (CommitError).
//
// If a process dies, nothing needs to be done: the database rolls back open transactions, and
// messages of committed ones are forwarded.
//
// # Staging early
//
// Tx.Stage (inside InTx) and StageTx (in your own transaction) record messages and begin to publish
// them at once. The broker confirms while the transaction's other statements run. Stage early if
// the content of the message is known before the transaction's last statements, and these take
// about as long as the confirm. In a transaction that runs for seconds send at the end, since a
// verifier's lookup waits for the ledger's row from the staging on. If many transactions roll back,
// send at the end too: the broker has stored their messages for nothing.
//
// # In order
//
// Messages with the same bridge.Message.OrderKey reach their target in order; package bridge has
// the exact promise. They are staged in the ordered queues (Options.OrderedShards), and are never
// carried: during an outage of the broker their transaction fails. If the messages of a transaction
// for one queue do not fit into one group, the transaction waits for the confirm of each group
// before it sends the next. Messages without an order key have no order.
//
// # Delayed messages
//
// A message with a bridge.Message.NotBefore waits in its row until the database's clock has reached
// that time. Then a verifier stages it, and it is judged and forwarded like any other. Its row
// always carries it, whatever its size and Options.Carry. The sender neither publishes it nor keeps
// it in memory. A delayed message with an order key is bridge.ErrInvalidMessage, because later
// messages of the key would overtake it. On an own table, which carries nothing, every delayed
// message is.
//
// The message is staged less than a second after its time, if a verifier runs and the broker
// accepts messages. A verifier that was down stages the overdue ones, the earliest first, and new
// messages overtake most of them. If the program adds a duration to its own time.Now(), the message
// is late or early by the difference of its clock and the database's.
//
// Sender.Cancel cancels a delayed message in a transaction, for example the reminder of an order
// that the transaction marks as paid (example_delay_test.go). After a failover to a replica that
// lacks a verifier's last commits, Cancel may return true for a delivered message. So the receiver of
// a reminder should check that the order is still unpaid.
//
// Leave bridge.Message.ID zero, so that the ID's time is NotBefore: a receiver refuses a UUIDv7
// that is older than its idempotency.Options.Retention.
package sender
