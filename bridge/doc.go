// Package bridge holds the parts that senders, verifiers and receivers share: [Message], the queues
// ([Topology]), the connection to RabbitMQ ([Dial]), and the errors. This comment describes the
// protocol: a message goes out to RabbitMQ if and only if its transaction in an SQL database
// commits.
//
//	ledger, err := postgres.Open(ctx, db) // or sqlserver, mysql, sqlite; migrate.Ledger has made its tables
//	broker, err := bridge.Dial(ctx, "amqp://shop:secret@localhost/", nil)
//	err = bridge.Topology{Queue: "twoqueue"}.Declare(ctx, broker) // a verifier does this too
//	s, err := sender.New(ledger, broker, nil)
//	_, err = s.SendTx(ctx, bridge.SQL(tx), bridge.Message{RoutingKey: "emails", Publishing: amqp.Publishing{Body: body}})
//
// [github.com/twoqueue/twoqueue/sender] describes how to send,
// [github.com/twoqueue/twoqueue/verifier] the path of a message after it was sent, and
// [github.com/twoqueue/twoqueue/idempotency] how to handle each message once; their files
// example*_test.go have whole programs. [github.com/twoqueue/twoqueue/bridge/migrate] makes the
// tables and has the rights of each role. [github.com/twoqueue/twoqueue/bridge/postgres],
// [github.com/twoqueue/twoqueue/bridge/sqlserver], [github.com/twoqueue/twoqueue/bridge/mysql] and
// [github.com/twoqueue/twoqueue/bridge/sqlite] describe how each database waits, and how it must be
// set up.
//
// For senders in other languages [github.com/twoqueue/twoqueue/bridge/wire] has the format of a
// staged message. A further database implements the interfaces of
// [github.com/twoqueue/twoqueue/bridge/driver] and passes the suite of
// [github.com/twoqueue/twoqueue/bridge/ledgertest].
//
// # The two queues
//
//	sender                         verifier                       receiver
//	  INSERT the ID  -> ledger <-    has it committed?
//	  publish        -> staging queue -> consume
//	  COMMIT                         publish -> target queue ->     handle once
//
// These words have one meaning everywhere:
//
//	ledger           the table of IDs
//	staging queue    the queue of messages whose transaction may still be open
//	record           insert the ID, in the sender's transaction
//	stage            publish the message to the staging queue
//	settle           wait on the row lock until that transaction ends
//	outcome          committed, rolled back, or still open
//	target           an exchange and a routing key
//	forward, forget  publish a committed message to its target, then delete its row
//	drop             ack a message of a rolled-back transaction
//	dead queue       for messages that can be neither forwarded nor rightly dropped
//	carried message  its row holds a copy of it; if no queue has the message, a
//	                 verifier stages that copy, but not before the row's stage time
//	orphan           a row without a message whose message has gone from the queues
//	inbox            the receiver's table of processed keys
//
// # Guarantees
//
// Every message of a committed transaction is delivered at least once, or is put into the dead
// queue with the reason. All copies have the same message ID. No other message is delivered. A
// receiver that handles each message ID once (package idempotency) turns this into exactly once,
// for effects in its database.
//
// This holds while database and broker keep everything that they have committed and confirmed;
// classic queues may not, if the broker's host crashes (Topology.Classic). A message larger than
// the broker's present limit stays in its queue until the limit is raised. Messages without an
// order key may arrive in any order, even within one transaction. No delivery time is promised.
//
// # In order, per key
//
// Messages may carry an order key (Message.OrderKey). Let A and B be two messages of one key. If
// the sender of B staged B after A's transaction had committed, or if both are of one transaction
// and A was sent first, then A's first copy reaches the target before B's first copy. Transactions
// that first lock a row they share, and then send, always meet this condition. When a transaction
// stages a message early, the messages that it has already sent with that key are staged before it.
//
// Different keys do not wait for each other, and messages without a key do not wait for messages
// with one. All share a verifier's work and memory. Within one transaction the sender stages the
// messages with a key first.
//
//   - A copy may come again later, with the same ID. A receiver that skips messages it has handled
//     sees the order. The target must keep the order too: one queue with one active consumer
//     (idempotency.ReceiverOptions.SingleActiveConsumer), and one worker or a ConsumerOptions.Key.
//   - Each attempt to send a message needs a new ID. The copy of a rolled-back attempt is further
//     ahead in the queue. With the same ID it would count as the message's first copy, and arrive
//     too early.
//   - When a message goes to the dead queue, the verifier's option HoldKeys decides whether its key
//     waits. A message replayed by an operator arrives when it is replayed.
//
// # Crashes
//
//	the process dies after …              consequence
//	record, before publish                the database rolls back; no message
//	publish or confirm, before COMMIT     rolled back; the staged copy is dropped
//	COMMIT                                the row is there; the message is forwarded
//	COMMIT of a carried message whose     the row carries it; at its stage time a verifier
//	staged copy was lost, or never sent   stages it
//	COMMIT of a delayed message           the row carries it; a verifier stages it when its
//	                                      time has come
//	Cancel of a message, before COMMIT    rolled back; the message stays
//	verifier: the claim of a carried      staged when the moved stage time comes
//	message, before its staging is
//	confirmed
//	verifier: the confirm of that         if the first copy was only late, the second finds
//	staging                               no row and is dropped; or it is a duplicate
//	verifier: the lookup                  redelivered, looked up again
//	verifier: publish to the target       redelivered, forwarded again: a duplicate with the
//	                                      same ID
//	verifier: its confirm, before DELETE  the same
//	verifier: DELETE, before the ack      redelivered, absent, dropped: it had been
//	                                      forwarded
//	verifier: the ack, before DELETE      an orphan row, harmless; a carried message is
//	                                      staged again: a duplicate (package verifier
//	                                      acks first only if the DELETE is late or fails)
//	database: a DELETE that has not       the row is back: an orphan; a carried message is
//	reached the disk                      staged again: a duplicate
//	receiver: its commit, before its ack  redelivered; its inbox has the ID
//
// # Rules
//
// Every implementation of a side of the bridge must keep these rules. Comments and tests in this
// module cite them by number.
//
//  1. Record before publish: the INSERT has succeeded before the first byte of the message leaves.
//     A message without a row looks like one of a transaction that rolled back.
//  2. COMMIT only when every message of the transaction is safe: confirmed by the broker and not
//     returned, or carried by a row that the same transaction has inserted (driver.Recorder).
//     Anything else is an error, and the transaction must roll back. RabbitMQ returns an unroutable
//     message and then confirms it all the same, so a confirm alone proves nothing. Messages with
//     an order key are never carried: a later message would overtake one that got lost.
//  3. Only a lookup that waits on locks, on the primary, may return 'rolled back'. If a lookup does
//     not wait, times out or fails, a missing row proves nothing. A row that it finds may be
//     believed.
//  4. Forwarded means confirmed and not returned. Until then the row and the staged message stay.
//     Then they may go, in any order.
//  5. A verifier proves on the live database that its lookup waits, in every session, before it
//     judges (proof.Prove). If the proof fails, it judges nothing and reports the reason.
//  6. A message is judged only by its own ledger, whose identity it carries. In any other database
//     its row is missing, which would look like a rollback. A copy of the database, and an old
//     primary that comes back, have the original's identity, and a pool may open a connection to
//     either at any time. So (a) each outcome names the server instance that gave it. A session
//     believes only outcomes of the instance of its proof; an outcome of any other ends the
//     session, with both named. And (b) 'rolled back' needs evidence that the senders commit on
//     this instance. A session drops nothing until it has found a committed row that was recorded
//     after the session began (by the database's clock; canaries do not count), for a message that
//     no verifier has staged again. An own table has no such time: there the message's staging time
//     and a margin decide. Until then messages that look rolled back wait in the queues, and log,
//     metric and readiness report that.
//  7. A delivery tag never outlives its channel. After any error of a channel or connection all of
//     its work begins anew on another. A Connection does not recover by itself.
//  8. No strange message is lost, and none stops the others. A message that is malformed, foreign,
//     not allowed, refused, or still unroutable after its retries goes to the dead queue,
//     confirmed, with the reason. Only then is it acked. A publish that closes the channel (404,
//     403, 406) must not end one session after the other: the message that causes it is found, and
//     the others go on. A target that is full or missing delays its own messages only.
//  9. One slow transaction delays only its own messages, and the messages behind them with the same
//     order key. If a verifier holds as many messages of an ordered queue as it may, that whole
//     queue waits.
//  10. Memory is bounded by configured counts, of messages and of bytes as they are held (decoded),
//     whatever the backlog.
//  11. The caller's transaction belongs to the caller: no commit, no rollback, no DDL in it. Tx has
//     no method that commits or rolls back.
//  12. The main job depends on nothing else. Lookup, settle, forward, forget and ack go on even if
//     staging again, sweeping, counting, explaining, observing, auditing, the status page or the
//     endpoints fail. These log when they begin to fail and when they work again, back off, and
//     never end a session.
//
// # Rights at the broker
//
// bridgectl grants prints the rights of each role. A sender needs only the right to write to
// Topology.Exchange. Through it the sender reaches the staging queue and the ordered queues, and no
// others. Without an Exchange it needs the right to write to the default exchange, which rights
// call amq.default. It then reaches every queue of the virtual host, because RabbitMQ checks no
// right for a queue when a message is published.
//
// A verifier reads the staging, the waiting and the ordered queues, and writes to the targets'
// exchanges and to amq.default, through which it reaches the waiting, the dead and the audit queue.
// To declare the queues it needs the right to configure them; to declare an Exchange, the rights to
// configure and to read it, and to write to the staging and the ordered queues. The rights to
// configure and to read Topology.LedgerQueue keep verifiers of other ledgers from the staging
// queue.
//
// A receiver needs the right to read its queue. To declare the queue it also needs the right to
// configure the queue and, if the queue has a dead-letter exchange, to write to that exchange
// (amq.default for the default one). idempotency.DeadQueue needs the right to write to amq.default.
// A receiver that replies needs the rights of a sender.
//
// # Requirements of a verifier
//
//   - A ledger on the writable primary. The proof must pass, also through a pooler.
//   - The queues of Topology. Nothing may expire in the staging queue or be dropped from it;
//     Declare checks the queue's arguments for that, but cannot see policies. A policy may limit
//     the queue with the overflow reject-publish: to senders a full staging queue is an outage.
//   - In a cluster, a node without a majority must lose its clients. Otherwise no message is lost,
//     but that node's clients stop working. Up to RabbitMQ 4.2 cluster_partition_handling =
//     pause_minority does that. From 4.3 on this setting has no effect (RabbitMQ's guide
//     'Clustering and Network Partitions'), and the clients of such a node hear nothing until the
//     partition ends (measured on 4.3.6): the load balancer must take the node out.
//   - An allow-list of targets: the verifier publishes on behalf of every login that may write to
//     the staging queue.
package bridge
