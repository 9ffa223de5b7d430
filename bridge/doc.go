// Package bridge is what the two sides of the two-queue bridge share: the message
// and its wire format, the queues, the connection to RabbitMQ, and the interface of
// the ledger. Its comment is the protocol: who implements a side of it, in whatever
// language, finds here what must be so.
//
// The bridge carries messages from transactions of an SQL database to RabbitMQ: a
// message goes out if and only if its transaction commits. An application meets this
// package as [Message], [Dial], [Topology] and in errors:
//
//	ledger, err := postgres.Open(ctx, db) // or sqlserver, mysql, sqlite; migrate.Ledger has made its tables
//	broker, err := bridge.Dial(ctx, "amqp://shop:secret@localhost/", nil)
//	err = bridge.Topology{Queue: "twoqueue"}.Declare(ctx, broker) // a verifier does this too
//	s, err := sender.New(ledger, broker, nil)
//	_, err = s.SendTx(ctx, tx, bridge.Message{RoutingKey: "emails", Publishing: amqp.Publishing{Body: body}})
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
//   - [github.com/twoqueue/twoqueue/bridge/ledgertest]: the suite that a further
//     database must pass
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
// copies with the same message ID, and no other message is delivered at all; as long as
// database and broker keep what they have committed and confirmed. A receiver that
// handles each message ID once (package idempotency) makes of this exactly once, as far
// as its effects are in a database.
//
// Not promised: an order among messages, not even among those of one transaction. How
// soon: a message waits for its transaction, and for a verifier.
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
//	verifier: the ack, before DELETE      an orphan row, harmless; see Sweeper (package
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
//     transaction (Parker). Anything else is an error, and the transaction must roll
//     back. An unroutable message is returned and then confirmed all the same: a
//     confirm alone is worth nothing.
//  3. Only a lookup that waits on locks, on the primary, may say 'rolled back'. A
//     read that does not wait, a time-out and an error say nothing; what such a
//     read does find may be believed.
//  4. Forwarded means confirmed and not returned. Until then the row and the staged
//     message stay. Then they may go, in any order.
//  5. A verifier proves that its lookup waits, on the live database, before it
//     judges, in every session anew: Prove.
//  6. A message is judged by its own ledger only, the one whose identity it carries.
//     Any other database knows nothing of it, and silence would read as 'rolled back'.
//  7. A delivery tag never outlives its channel: after any error of a channel or
//     connection everything is begun anew. A Connection does not recover.
//  8. Nothing is lost for being strange, and nothing strange stops the others. What is
//     malformed, foreign, not allowed or refused goes to the dead queue, confirmed,
//     with the reason, and only then is it acked. A publish that closes its channel must
//     not do so for ever. A target that is full or missing holds up itself alone.
//  9. One slow transaction delays its own messages only.
//  10. Memory is bounded by configured counts, of messages and of bytes, whatever the
//     backlog.
//  11. The caller's transaction belongs to the caller: no commit, no rollback, no
//     DDL in it. Tx has no method for them.
//  12. The main job depends on nothing else. Lookup, settle, forward, forget and ack go on
//     whatever becomes of unparking, sweeping, counting, explaining, observing, the
//     status page and the endpoints. These say in the log when they begin to fail and
//     when they work again, back off, and never end a session.
//
// # The wire format
//
// For senders in other languages. Within its transaction a sender first inserts the
// message's ID into bridge_ledger (id), where SQLite takes it as text in lower case and
// MySQL as BINARY(16), the bytes in the UUID's order; then it stages the message; then it
// commits (rules 1 and 2).
//
// A staged message is the final message, as the receiver shall see it, plus headers. All
// are strings (AMQP long strings) unless said otherwise; texts of UUIDs are the 36
// characters with hyphens.
//
//	property or header    what it holds
//	message-id            the ID, a UUID; the row in the ledger has the same one
//	x-bridge-ledger       the ledger's identity, a UUID: table bridge_identity; that of
//	                      an OwnTable is made from it
//	x-bridge-exchange     the target exchange, empty for the default exchange
//	x-bridge-routing-key  the target routing key; with the default exchange the
//	                      name of a queue
//	delivery-mode         2; a confirm of a transient message promises nothing
//
// All are required. The verifier cannot check the last one in time. A broker
// would act on the following already in the staging queue; they travel as headers, and
// the verifier puts them back:
//
//	x-bridge-expiration   instead of expiration, in ms, at most ten years: a
//	                      committed message would expire while it waits
//	x-bridge-cc           instead of the header CC, a list of strings: copies would
//	x-bridge-bcc          leave before the commit; the same for BCC
//	x-bridge-user-id      instead of user-id: refused when another user forwards;
//	                      put back only where the verifier is told to
//
// Everything else stays in its place: body, content-type and content-encoding,
// correlation-id, reply-to (but not direct reply-to), priority, timestamp, type,
// app-id, headers of any AMQP type, trace context. Other names that begin with
// x-bridge- are reserved, and removed with those that queues add (x-death,
// x-delivery-count and their like). Headers and properties together have at most
// 64 KiB, and there are at most 1000 headers. A table or list inside of them has at most
// 8192 elements, and they lie at most 32 deep in each other. amqp091-go reads no more: a
// delivery with more ends the connection of whoever consumes it, verifiers too, each time
// it is delivered.
//
// A staged message is published to the default exchange with the staging queue's name as
// routing key, mandatory, on a channel in confirm mode.
//
// One more header may be there. x-bridge-staged-at, a 64-bit integer: when the sender
// began to stage the message, before it recorded the ID, in ms since 1970. It is
// needed where the ID is no UUIDv7 of that moment, so that a sweep of orphan rows can
// be told from a rollback (Sweeper).
//
// Several staged messages may travel as one, a group: it has the headers
// x-bridge-group ("1"), x-bridge-ledger, and x-bridge-staged-at if that is to count
// for all of them; and its body is the members' records, one after the other, at
// most 1000. A record is
//
//	uint32  length of the properties
//	        the properties of the staged message as in an AMQP 0-9-1 content
//	        header: property flags, then the property list; x-bridge-ledger and
//	        delivery-mode may be missing in it
//	uint32  length of the body
//	        the body
//
// with big-endian numbers. Each member is judged as if it had come alone. A group
// costs the broker what one message costs. Nobody has to make groups.
//
// # What the other queues hold
//
// The waiting queue holds staged messages, alone or in groups, with headers for the
// verifiers: x-bridge-set-aside-at (when it was put there, in ms since 1970),
// x-bridge-unroutable-since (when its target was first found missing, in ms since 1970) and
// x-bridge-attempts (how often it could not be forwarded).
//
// A dead letter is a staged message with five more headers, all strings but the number of
// attempts:
//
//	x-bridge-dead-reason    one of DeadReasons
//	x-bridge-dead-text      the reason in words
//	x-bridge-dead-verdict   "committed", or "unknown" if it could not be judged
//	x-bridge-dead-attempts  how often it could not be forwarded
//	x-bridge-dead-at        RFC 3339, UTC
//
// Where the message's own headers leave no room for these, the dead letter has the header
// x-bridge-dead-record ("1") and the content type application/vnd.twoqueue.record. Its
// body is then the record of the message, as in a group, but with x-bridge-ledger in it.
// OpenDead reads it.
//
// The audit queue holds messages as they were staged, with x-bridge-dropped-at (RFC 3339,
// UTC).
//
// # In Go
//
// Encode and Parse are the format of a message, Group and Members that of groups, and
// EncodeRecord that of a record. A message that does not follow it goes to the dead queue.
//
// # What a verifier needs
//
//   - Of the database: a Ledger, that is: a lookup that never waits for a transaction,
//     one that waits for one ID under the server's own lock time-out, and a DELETE. It
//     must be the writable primary, and the proof must pass, also through a pooler.
//   - Of the broker: the queues of Topology, the right to read the staging and the
//     waiting queue, and the right to write to amq.default, as the default exchange is
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
