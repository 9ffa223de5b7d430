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
//
// InTx begins and commits the transaction. In a transaction of your own, call SendTx(ctx,
// bridge.SQL(tx), …) with a *sql.Tx or a *sqlx.Tx; a *sql.DB does not compile. bridge.SQL describes
// the argument for other libraries, and packages pgxsender, gormsender and bunsender have an InTx
// for theirs. The examples (example_*_test.go in this folder) are whole programs: PostgreSQL, SQL
// Server, sqlx, an own table, staging early, carrying, and delayed messages.
//
// The ledger's tables (package migrate, or verifier -migrate) must be in the transaction's
// database. A verifier must run: it makes the queues, and without it no message arrives (package
// verifier). Package bridge describes the protocol: its terms, its rules, and the consequences of
// each crash.
//
// # How it works
//
// SendTx inserts the messages' IDs into the ledger, publishes all messages to the staging queue,
// and waits once for all confirms. By default it also inserts a copy of each small message, and
// does not wait for this message's confirm (see 'Carrying'). Rules 1 and 2 of package bridge make
// that safe: the INSERT has succeeded before the first byte of a message leaves, and SendTx returns
// nil only if each message is confirmed and was not returned, or its row carries it. With an own
// table, SendTx inserts nothing and checks that the messages' rows exist.
//
// While SendTx waits, the transaction is open and holds its locks for a round trip to the broker,
// at most for twice Options.Timeout (longer with order keys, see Options.Timeout). So send as late
// in the transaction as you can, as InTx does, or stage early.
//
// # Carrying
//
// The ledger's row of a message can also hold the message. Such a message is carried. It is
// published to the staging queue when its row has been inserted, but SendTx, Wait and InTx do not
// wait for the confirm, so the transaction commits without it. If a transaction also sends messages
// that are not carried, it waits for their confirms only. Options.Carry selects the messages that
// are carried. Messages with an order key never are.
//
//	CarrySmall     the default: messages up to Options.CarryBytes (8 KiB), and in an
//	               outage of the broker larger ones too
//	CarryNever     none; the database holds only IDs, and no transaction with messages
//	               commits without the broker
//	CarryOnOutage  all in an outage of the broker, none otherwise
//	CarryAlways    all
//
// A failed publication of a carried message does not fail its transaction. The sender publishes the
// message again, until ten seconds after its record. If the staging queue still does not have it,
// or the process has died, a verifier stages the message from its row after the commit, some
// seconds late. While the broker fails or blocks, the sender writes only the rows, and publishes one
// message a second to find the end of the failure. The log has a line when the sender stops
// publishing, and one when it goes on. While carried messages of Options.CarryPendingBytes wait for
// their confirms, the sender writes only the rows of further ones, without a line in the log.
//
// If the broker refuses a carried message (406: it is too large), the sender publishes it once
// more, alone, and then leaves it in its row until the broker accepts such a size and a verifier
// can stage it. The log names its ID. Other messages go on.
//
// If the transaction rolls back, the row is gone and the verifier drops the copy. The same holds
// for a rollback to a savepoint that was set before the message was recorded. If a confirm was lost
// or late, the message may be delivered twice, with the same ID.
//
// A carried message costs the database about as much as a row of an outbox table: the INSERT
// writes its bytes to the database's log, and the verifier deletes them with the row. Large messages
// are better left to the broker. Choose CarryNever if the database must not pay for any message or
// hold its content. A ledger of an own table carries nothing: CarrySmall is CarryNever there.
//
// Call Flush before the process ends, so that no message is left to the verifiers. If the broker is
// out, Flush returns an error within about five seconds. Its context may end sooner: no committed
// message is lost.
//
//	err := s.Flush(ctx) // then broker.Close()
//
// # When the broker is out
//
// The sender considers the broker out after a publication has failed because the broker is
// unavailable, blocks, has no room in the staging queue, or does not confirm within
// Options.Timeout. It also does so while a publication has waited for its confirm for more than a
// second. (A missing queue or right, a refused login and a refused message are no outages: repair
// them.) Unless Options.Carry is CarryNever, the sender carries all messages without an order key
// until a message is confirmed again, and their transactions commit without the broker. A
// transaction that was waiting for a confirm when the outage began fails:
//
//	                      it begins          while it is known
//	carried anyway        commits            commits
//	CarrySmall, large     fails              commits, carried
//	CarryOnOutage         fails              commits, carried
//	CarryNever            fails              fails
//	with an order key     fails              fails at once
//
// A transaction fails after twice Options.Timeout at most (longer with order keys, see
// Options.Timeout). With an order key it fails at once while the outage is known, but not with
// CarryNever. (Ordered queues are separate: a full staging queue, and a confirm that is only late,
// are no outage for messages with an order key.) bridge.Retryable returns true for its error: roll
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
//	bridge.Retryable(err)      no broker, blocked, full queue, no confirm in time, or no
//	                           connection to begin the transaction on:
//	                           try again later with a new transaction, but not for
//	                           ever; false once your own context is cancelled
//	bridge.ErrReturned         the staging queue or its binding to Options.Exchange is
//	                           not there: Topology.Declare
//	bridge.ErrInvalidMessage   this message can never be sent; nothing was touched
//	bridge.ErrDuplicateID      this ID is in the ledger, or was given twice in one call
//	bridge.ErrNoRow            with an own table: insert the message's row first
//	bridge.ErrOtherLedger      the transaction is one of another database
//	bridge.ErrCredentials      the broker refuses the login
//	bridge.ErrTxEnded          from InTx on MySQL and MariaDB: the server ended the
//	                           transaction while the function ran; its comment says
//	                           which statements are committed
//	sender.ErrCommitUnknown    from InTx only: the COMMIT's answer is missing. If it
//	                           did commit, the message is delivered: check before you
//	                           repeat the work
//
// Any other error is the database driver's. It also is bridge.ErrNoSchema, bridge.ErrNotPrimary or
// bridge.ErrReadOnly if that is the cause. A *bridge.PublishError in the chain names a message. If
// you call Commit yourself, you must judge its error: unless the database itself refused, the
// transaction may have committed.
//
// If a process dies, nothing needs to be done: the database rolls back open transactions, and
// messages of committed ones are forwarded.
//
// # Staging early
//
// Tx.Stage (inside InTx) and StageTx (in your own transaction) record messages and begin to publish
// them at once. The broker confirms while the transaction's other statements run. InTx waits for
// the confirm before it commits. After StageTx you must wait yourself: commit only when Wait of its
// result has returned nil.
//
// Stage early if the content of the message is known before the transaction's last statements, and
// these take about as long as the confirm. The costs:
//
//   - Your own rows are not locked for longer. The ledger's row is locked from the staging to
//     the end of the transaction, and only the verifier waits for it.
//   - The verifier receives the message sooner, and its lookup waits until the transaction
//     ends. That is cheap for milliseconds. In a transaction that runs for seconds, send at the
//     end.
//   - If the transaction rolls back, the broker has stored the message for nothing, and the
//     verifier drops it. If many roll back, send at the end.
//
// # Groups
//
// While a message waits for its confirm, messages of concurrent transactions gather. They travel to
// the staging queue as one group, which costs the broker a fraction of single messages. Every
// transaction waits for the confirm of the groups that contain its messages, and the verifier
// judges each message by itself. If a group fails, every transaction with a message in it fails and
// rolls back. If no publication is under way, a message does not wait for others. Carried messages
// have separate groups. Options.GroupMessages = 1 turns grouping off.
//
// # In order
//
// Messages with the same bridge.Message.OrderKey reach their target in order; package bridge has
// the exact promise. They are staged in the ordered queues (Options.OrderedShards), also in groups,
// and are never carried: during an outage of the broker their transaction fails. If the messages of
// a transaction for one queue do not fit into one group, the transaction waits for the confirm of
// each group before it sends the next. Other transactions' groups may go between, so they need not
// wait for all of its groups.
//
// # Delayed messages
//
// A message with a bridge.Message.NotBefore waits in its row until the database's clock has reached
// that time. Then a verifier stages it, and it is judged and forwarded like any other. Its row
// always carries it, whatever its size and Options.Carry. The sender neither publishes it nor keeps
// it in memory. A delayed message with an order key is bridge.ErrInvalidMessage, because later
// messages of the key would overtake it. So is one on an own table, which carries nothing.
//
// The message is staged less than a second after its time, if a verifier runs and the broker
// accepts messages. A verifier that was down stages the overdue ones, the earliest first, and new
// messages overtake most of them. bridgectl delayed lists the waiting messages, cancels them, or
// has them staged at once.
//
// NotBefore is an instant, and only the database's clock is compared with it. So a sender's clock
// does not matter for a time that comes from data, such as an appointment. If the program adds a
// duration to its own time.Now(), the message is late or early by the difference of the two clocks.
//
// Sender.Cancel cancels a delayed message in a transaction, for example the reminder of an order
// that the transaction marks as paid:
//
//	err := s.InTx(ctx, db, nil, func(tx *sender.Tx) error {
//		if _, err := tx.ExecContext(ctx, `UPDATE orders SET paid = true WHERE id = $1`, order); err != nil {
//			return err
//		}
//		_, err := s.Cancel(ctx, tx, reminder)
//		return err
//	})
//
// Cancel returns false if a verifier has the message already, which it sees in the row, also after
// a crash of the database. After a failover to a replica that lacks the verifier's last commits,
// Cancel may return true although the message was delivered. So the receiver of a reminder should
// check that the order is still unpaid.
//
// Leave bridge.Message.ID zero, so that the ID's time is NotBefore. A receiver refuses a UUIDv7
// that is older than its idempotency.Options.Retention, as an ID that was made long before
// NotBefore would be.
//
// # Unit tests
//
// Package sendertest has a Sender without a broker or a ledger. It returns the committed messages
// to the test, and can be made to fail.
//
// # Metrics
//
// Sender.Stats counts messages and reports whether the broker is out. Package metrics, below this
// one, exports the same to Prometheus.
//
// # Traces
//
// With Options.Tracer the messages carry the trace context of their sender. Package otelsender
// makes the spans with OpenTelemetry.
//
// # Limits
//
// The sender does not repeat a transaction, does not wait for the receiver, and keeps no order
// among messages without an order key. It does not see whether the target exists: the verifier
// sends an unroutable message to the dead queue.
package sender
