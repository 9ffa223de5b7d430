// Package bridge is what every application that uses the two-queue bridge needs: the
// message, the queues, the connection to RabbitMQ, and the errors. Its comment is the
// protocol.
//
// The bridge carries messages from transactions of an SQL database to RabbitMQ: a
// message goes out if and only if its transaction commits. An application meets this
// package as [Message], [Dial], [Topology] and in errors:
//
//	ledger, err := postgres.Open(ctx, db) // or sqlserver, mysql, sqlite; migrate.Ledger has made its tables
//	broker, err := bridge.Dial(ctx, "amqp://shop:secret@localhost/", nil)
//	err = bridge.Topology{Queue: "twoqueue"}.Declare(ctx, broker) // a verifier does this too
//	s, err := sender.New(ledger, broker, nil)
//	_, err = s.SendTx(ctx, bridge.SQL(tx), bridge.Message{RoutingKey: "emails", Publishing: amqp.Publishing{Body: body}})
//
// The other chapters:
//
//   - [github.com/twoqueue/twoqueue/sender]: how to send, and what to do on an error
//   - [github.com/twoqueue/twoqueue/verifier]: what becomes of a message that was sent
//   - [github.com/twoqueue/twoqueue/idempotency]: how to handle each message once
//   - [github.com/twoqueue/twoqueue/bridge/migrate]: the tables
//   - [github.com/twoqueue/twoqueue/bridge/postgres],
//     [github.com/twoqueue/twoqueue/bridge/sqlserver],
//     [github.com/twoqueue/twoqueue/bridge/mysql] and
//     [github.com/twoqueue/twoqueue/bridge/sqlite]: how each database waits, the rights
//     that it takes, and what must be so in it
//
// Other readers have doors of their own:
//
//   - [github.com/twoqueue/twoqueue/bridge/wire]: the format of a staged message, for
//     senders in other languages and for tools that read the queues
//   - [github.com/twoqueue/twoqueue/bridge/driver]: what a further database brings, and
//     [github.com/twoqueue/twoqueue/bridge/ledgertest], the suite that it must pass
//   - [github.com/twoqueue/twoqueue/bridge/inspect]: what operators ask of a database;
//     the packages below it answer, and an application does not link them
//
// # The two queues
//
// The payload waits in the broker, the database holds only an ID.
//
//	sender                         verifier                       receiver
//	  INSERT the ID  -> ledger <-    has it committed?
//	  publish        -> staging queue -> consume
//	  COMMIT                         publish -> target queue ->     handle once
//
// The words, used everywhere: the ledger is the table of IDs. The staging queue
// holds messages whose transaction may still be open. To record is to insert the ID
// in the sender's transaction; to stage is to publish the message to the staging
// queue. To settle is to wait for that transaction's end, on its row lock; the outcome
// is committed, rolled back or still open. A committed message is forwarded to its
// target (exchange and routing key) and its row forgotten; one of a rolled-back
// transaction is dropped. What can be neither forwarded nor rightly dropped goes to the
// dead queue. A parked message lies in the database, since the broker was out when it
// was sent; a verifier stages it later. An orphan is a row whose message is gone from
// the queues. The inbox is the receiver's table of processed keys.
//
// # What is promised, and what is not
//
// Every message of a transaction that has committed is delivered at least once, all
// copies with the same message ID, or is put into the dead queue with the reason. No other
// message is delivered at all. This holds as long as database and broker keep what they
// have committed and confirmed. A receiver that handles each message ID once (package
// idempotency) turns this into exactly once, for effects in its database.
//
// Not promised: any order of messages without an order key, even within one transaction;
// or any delivery time: a message waits for its transaction, and for a verifier.
//
// # In order, per key
//
// Messages may carry an order key (Message.OrderKey). Let A and B be two messages of one
// key. If the sender of B staged B after A's transaction had committed, or if both are of
// one transaction and A was sent first, then A's first copy reaches the target before B's
// first copy. (Where a transaction stages a message early, what it has sent before with that
// key is staged first.) Transactions that lock a row they share, and send after that, are always in
// that case. Different keys do not wait for each other, and messages without a key do not wait for
// those with one. They share a verifier's work and memory. In one transaction the sender
// stages the messages with a key first.
//
//   - A copy may come again later, with the same ID. A receiver that skips what it has
//     handled sees the order.
//   - The target must keep the order too: one queue with one active consumer.
//   - Each attempt to send a message needs a new ID. A copy of a rolled-back attempt stands
//     further ahead in the queue. With the same ID it would be the first copy of the
//     message, at the wrong place.
//   - Senders do not park these messages: without the broker their transactions fail.
//   - What happens to a key whose message went to the dead queue is the verifier's option.
//     What an operator replays from the dead queue arrives when it is replayed.
//
// # What happens at a crash
//
//	the process dies after …              what follows
//	record, before publish                the database rolls back; no message
//	publish or confirm, before COMMIT     rolled back; the staged copy is dropped
//	COMMIT                                the row is there; the message is forwarded
//	verifier: the lookup                  redelivered, looked up again
//	verifier: publish to the target       redelivered, forwarded again: a duplicate
//	verifier: its confirm, before DELETE  the same
//	verifier: DELETE, before the ack      redelivered, absent, dropped: it had been
//	                                      forwarded
//	verifier: the ack, before DELETE      an orphan row, harmless; see driver (package
//	                                      verifier never acks first)
//	parking, before COMMIT                the database rolls back; no message
//	verifier: staging a parked message    it is still parked, and staged again: a
//	                                      duplicate, or dropped as forwarded
//	receiver: its commit, before its ack  redelivered; its inbox knows the ID
//
// # Rules
//
// Whoever implements a side of the bridge keeps these; each has been paid for. Comments
// and tests in this module cite them by number.
//
//  1. Record before publish: the INSERT has succeeded before the first byte of the
//     message leaves. A message without a row looks like one of a transaction that
//     rolled back.
//  2. COMMIT only after the broker has confirmed every message of the transaction
//     and returned none; or the message is parked in the database, by the same
//     transaction (driver.Recorder). Anything else is an error, and the transaction must roll
//     back. An unroutable message is returned and then confirmed all the same: a
//     confirm alone is worth nothing.
//  3. Only a lookup that waits on locks, on the primary, may say 'rolled back'. A
//     read that does not wait, a time-out and an error say nothing; what such a
//     read does find may be believed.
//  4. Forwarded means confirmed and not returned. Until then the row and the staged
//     message stay. Then they may go, in any order.
//  5. A verifier proves that its lookup waits, on the live database, before it
//     judges, in every session anew: driver.Prove.
//  6. A message is judged by its own ledger only, the one whose identity it carries.
//     Any other database knows nothing of it, and silence would read as 'rolled back'.
//  7. A delivery tag never outlives its channel: after any error of a channel or
//     connection everything is begun anew. A Connection does not recover.
//  8. Nothing is lost for being strange, and nothing strange stops the others. What is
//     malformed, foreign, not allowed or refused goes to the dead queue, confirmed,
//     with the reason, and only then is it acked. A publish that closes its channel must
//     not do so for ever. A target that is full or missing holds up itself alone.
//  9. One slow transaction delays its own messages only, and those behind them with the same
//     order key; when a verifier holds as many of an ordered queue as it may, all of that
//     queue.
//  10. Memory is bounded by configured counts, of messages and of bytes, whatever the
//     backlog.
//  11. The caller's transaction belongs to the caller: no commit, no rollback, no
//     DDL in it. Tx has no method for them.
//  12. The main job depends on nothing else. Lookup, settle, forward, forget and ack go on
//     whatever becomes of unparking, sweeping, counting, explaining, observing, the
//     status page and the endpoints. These say in the log when they begin to fail and
//     when they work again, back off, and never end a session.
//
// # What a verifier needs
//
//   - Of the database: a driver.Ledger, as Open returns it. It has a lookup that never
//     waits for a transaction, one that waits for one ID under the server's own lock
//     time-out, and a DELETE. It must be the writable primary, and the proof must pass,
//     also through a pooler.
//   - Of the broker: the queues of Topology, the right to read the staging, the waiting
//     and the ordered queues, and the right to write to amq.default, as the default exchange is
//     called there, and to the targets' exchanges; also to configure the queues, unless
//     they are there already. (A sender needs to write to amq.default only.) Nothing may
//     expire or overflow in the staging queue, neither by its arguments, which Declare
//     checks, nor by a policy, which it cannot see.
//   - Of a cluster: that a node without a majority loses its clients. Up to RabbitMQ 4.2
//     cluster_partition_handling = pause_minority does that. From 4.3 on this setting has no
//     effect (RabbitMQ's guide 'Clustering and Network Partitions'), and the clients of
//     such a node hear nothing until the partition ends (measured on 4.3.6): there the
//     load balancer must take the node out. Without either, no message is lost, but what
//     depends on that node's clients stands still.
//   - An allow-list of targets: whoever may write to the staging queue makes the
//     verifier publish.
package bridge
