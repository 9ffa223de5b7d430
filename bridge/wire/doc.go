// Package wire is the format of a staged message: what travels through the staging
// queue, lies parked in a database, and ends in the dead queue. It is for whoever sends
// from another language, and for tools that read these queues. An application in Go
// needs none of it: package sender stages, package verifier reads.
//
// Within its transaction a sender first inserts the message's ID into bridge_ledger
// (id). SQLite takes the ID as text in lower case, MySQL as BINARY(16) with the bytes in
// the UUID's order. Then the sender stages the message, waits for the confirm, and
// commits (rules 1 and 2 of package bridge).
//
// # A staged message
//
// It is the final message, as the receiver shall see it, plus headers. All headers are
// strings (AMQP long strings) unless said otherwise. UUIDs are written as 36 characters
// with hyphens. These five are required:
//
//	property or header    what it holds
//	message-id            the ID, a UUID; the row in the ledger has the same one
//	x-bridge-ledger       the ledger's identity, a UUID: table bridge_identity; that of
//	                      an own table is made from it (bridge.OwnTable)
//	x-bridge-exchange     the target exchange, empty for the default exchange
//	x-bridge-routing-key  the target routing key; with the default exchange the
//	                      name of a queue
//	delivery-mode         2; a confirm of a transient message promises nothing
//
// The verifier cannot check delivery-mode in time.
//
// A broker would act on the following already in the staging queue. They travel as
// headers, and the verifier puts them back:
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
// x-bridge- are reserved. The verifier removes them, and those that queues add (x-death,
// x-delivery-count and their like). The receiver's headers and properties together have
// at most 64 KiB, where each number, boolean and time counts as 16 bytes and the frame as
// 64. There are at most 1000 headers, those inside tables not counted. A table or list
// inside of them has at most 8192 elements, and they lie at most 32 deep in each other. amqp091-go reads no more: a
// delivery with more ends the connection of whoever consumes it, verifiers too, each time
// it is delivered.
//
// A staged message is published to the default exchange with the staging queue's name as
// routing key, mandatory, on a channel in confirm mode.
//
// One more header may be there. x-bridge-staged-at, a 64-bit integer, is the time at
// which the sender began to stage the message, before it recorded the ID, in ms since
// 1970. It is needed where the ID is no UUIDv7 of that moment. Without it a verifier cannot
// tell a swept row from a rollback ('The sweep' in package driver).
//
// # A message with an order key
//
// A message that must keep the order of its key has one header more:
//
//	x-bridge-order-key    1 to 255 bytes, no NUL
//
// It is published to an ordered queue instead of the staging queue. The ordered queues are
// named Q.ordered.0 to Q.ordered.(N-1), where Q is the staging queue and N their number
// (bridge.Topology.OrderedShards), which all senders must know alike. The key belongs to the
// queue whose number is the CRC-32 of the key's bytes (the one of zlib, gzip and Ethernet;
// of "123456789" it is 0xCBF43926), modulo N. So with N = 8 the key "123456789" belongs to
// Q.ordered.6. The message has no priority. A sender that publishes several messages of one
// queue in a transaction waits for the confirm of each before it publishes the next, or
// lets them travel in one group. Each attempt to send a message takes a new ID, also where a
// transaction that was rolled back is begun again: a copy of the first attempt stands further
// ahead in the queue, and with the same ID it would be the message's first copy, at the wrong
// place. A key that is empty or too long, or a priority beside it, makes the message malformed
// in any queue. In the staging queue the message is otherwise one without a key.
//
// # A group
//
// Several staged messages may travel as one, a group. A group has the headers
// x-bridge-group ("1"), x-bridge-ledger, and x-bridge-staged-at if that is to count
// for all members. Its body is the members' records, one after the other, at most 1000.
// A record is
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
// A parked message lies in the database as a record.
//
// # What an inbox holds
//
// A message that an inbox keeps (package idempotency) is no staged message any more. It lies
// there as it was delivered:
//
//	octet         the number of this form, 1
//	short string  the exchange that it was published to
//	short string  the routing key
//	record        all its properties and headers, and the body
//
// # What the other queues hold
//
// The waiting queue holds staged messages, alone or in groups, with headers for the
// verifiers, three 64-bit integers: x-bridge-set-aside-at (when it was put there, in ms since 1970),
// x-bridge-unroutable-since (when its target was first found missing, in ms since 1970) and
// x-bridge-attempts (how often it could not be forwarded).
//
// A dead letter is a staged message with five more headers, all strings but
// x-bridge-dead-attempts, a 64-bit integer. (What the broker itself moved there, at the
// delivery limit, has x-death instead.)
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
// [Encode] makes a staged message and [Parse] reads it. [Group] and [Members] do the same
// for a group, [EncodeRecord] and [ReadRecord] for a record, [EncodeDelivery] and
// [ReadDelivery] for what an inbox keeps, [DeadRecord] and [OpenDead] for a dead letter that
// is a record. What a verifier cannot parse goes to the dead queue.
package wire
