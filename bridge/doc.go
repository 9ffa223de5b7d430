// Package bridge is what the two sides of the two-queue bridge share: the message
// and its wire format, the queues, the connection to RabbitMQ, and the interface of
// the ledger, whose databases are in the packages below this one.
//
// The bridge carries messages from transactions of an SQL database to RabbitMQ: a
// message goes out if and only if its transaction commits. Applications use
// packages sender and idempotency, and run the verifier; they meet this package as
// Message, Dial, Topology and in errors.
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
// in the sender's transaction. To settle is to wait for that transaction's end,
// on its row lock; the outcome is committed, rolled back or still open. A committed
// message is forwarded to its target (exchange and routing key) and its row
// forgotten; one of a rolled-back transaction is dropped. What can be neither
// forwarded nor rightly dropped goes to the dead queue. A parked message lies in the
// database, since the broker was out when it was sent; a verifier stages it later. An
// orphan is a row whose message is gone from the queues.
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
//	verifier: the ack, before DELETE      an orphan row, harmless; see Sweeper
//	parking, before COMMIT                the database rolls back; no message
//	verifier: staging a parked message    it is still parked, and staged again: a
//	                                      duplicate, or dropped as forwarded
//	receiver: its commit, before its ack  redelivered; its inbox knows the ID
//
// So every committed message is delivered at least once, all copies with the same
// message ID, and no other message is delivered at all.
//
// # Rules
//
// Whoever implements a side of the bridge keeps these; each has been paid for.
//
//  1. Record before publish. A message without a row looks like one of a
//     transaction that rolled back.
//  2. COMMIT only after the broker has confirmed every message of the transaction
//     and returned none; or the message is parked in the database, by the same
//     transaction (Parker). An unroutable message is returned and then confirmed all
//     the same: a confirm alone is worth nothing.
//  3. Only a lookup that waits on locks, on the primary, may say 'rolled back'. A
//     read that does not wait, a time-out and an error say nothing; what such a
//     read does find may be believed.
//  4. Forwarded means confirmed and not returned. Until then the row and the staged
//     message stay. Then they may go, in any order.
//  5. A verifier proves that its lookup waits, on the live database, before it
//     judges: Prove.
//  6. A message is judged by its own ledger only. Any other database knows nothing
//     of it, and silence would read as 'rolled back'.
//  7. A delivery tag never outlives its channel: after any error of a channel or
//     connection everything is begun anew. Connections here do not recover.
//  8. Nothing is lost for being strange, and nothing strange stops the others.
//  9. One slow transaction delays its own messages only.
//  10. Memory is bounded by configured counts.
//  11. The caller's transaction belongs to the caller: no commit, no rollback, no
//     DDL in it. Tx has no method for them.
//
// # The wire format
//
// For senders in other languages. A staged message is the final message, as the
// receiver shall see it, plus headers. All are strings (AMQP long strings) unless
// said otherwise; texts of UUIDs are the 36 characters with hyphens.
//
//	property or header    what it holds
//	message-id            the ID, a UUID; the row in the ledger has the same one
//	delivery-mode         2; a confirm of a transient message promises nothing
//	x-bridge-ledger       the ledger's identity, a UUID: table bridge_identity
//	x-bridge-exchange     the target exchange, empty for the default exchange
//	x-bridge-routing-key  the target routing key; with the default exchange the
//	                      name of a queue
//
// These are required. A broker would act on the following already in the staging
// queue; they travel as headers, and the verifier puts them back:
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
// 64 KiB. A staged message is published to the default exchange with the staging
// queue's name as routing key, mandatory, on a channel in confirm mode.
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
// Encode and Parse are this format, Group and Members that of groups. A message that does not follow it goes to the
// dead queue.
//
// # What a verifier needs
//
//   - Of the database: a Ledger, that is: a lookup that never waits, one that waits
//     for one ID under the server's own lock time-out, and a DELETE. It must be the
//     writable primary, and the proof must pass, also through a pooler.
//   - Of the broker: the queues of Topology, and the rights to read the staging and
//     waiting queues, to write to these, to the dead queue and to the targets.
//     Nothing may expire or overflow in the staging queue, neither by its
//     arguments, which Declare checks, nor by a policy, which it cannot see.
//   - An allow-list of targets: whoever may write to the staging queue makes the
//     verifier publish.
package bridge
