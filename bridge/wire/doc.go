// Package wire defines the format of a staged message in the staging queue, in the row that carries
// it, and in the dead queue. Senders in other languages and tools that read these queues need it.
// An application in Go does not: package sender stages, package verifier reads. [Encode] and
// [Parse] are for a message, [Group], [Members] and [Packing] for groups, [DeadRecord] and
// [OpenDead] for dead letters.
//
// The folder testdata/vectors has test vectors for senders in other languages; its README describes
// them. The folder sender/python of the repository has a sender that passes them. In its
// transaction a sender first inserts the message's row into bridge_ledger. Then it stages the
// message, waits for the confirm, and commits (rules 1 and 2 of package bridge).
//
// # The row
//
// A plain row has the message's ID in column id. On SQLite the ID is text in lower case, on MySQL
// BINARY(16) with the bytes in the UUID's order. Insert id only: the columns message and stage_at
// stay NULL, and recorded_at has a default.
//
// The row must be in the ledger that the message's x-bridge-ledger names, even if a connection
// reaches another database than the last one did. So let the INSERT select the identity, and fail
// unless it inserts one row:
//
//	INSERT INTO bridge_ledger (id) SELECT :id FROM bridge_identity WHERE identity = :ledger
//
// A row may also carry the message. Then the transaction need not wait for the confirm. Such a row
// has these columns too:
//
//	message      the record of the staged message ('A group', below), with the header
//	             x-bridge-carried; its message-id is the row's ID
//	recorded_at  the database's present time
//	stage_at     when a verifier stages the message, if the row is still there. If the
//	             sender stages the message too, recorded_at plus a second. Otherwise
//	             equal to recorded_at, which means that no copy exists
//
// Set both message and stage_at, or neither. If only message is set, no verifier ever stages the
// message from its row, and the sweep deletes the row as an orphan. If only stage_at is set, the
// row has no message to stage, and no sweep deletes it.
//
// Read the database's clock once, in one statement, for both times. They are UTC where their type
// has no zone. On SQLite recorded_at is in seconds and stage_at in milliseconds since 1970; if the
// sender does not stage the message, and it is not delayed, stage_at is a whole second there,
// recorded_at times 1000.
//
// A delayed message is not staged by its sender. Its recorded_at and stage_at are its due time, or
// the database's present time if that is later. On SQLite recorded_at is then rounded up to the
// second, and stage_at is not. The record's x-bridge-staged-at is that time too.
//
// The column claimed_by on MySQL stays NULL. Only verifiers change a row, and the command bridgectl
// delayed now, which sets both times to the database's present time.
//
// Stage the message although the row carries it, unless the broker is away: a verifier's session
// drops no message until it has found the row of a message that a sender staged (rule 6 of package
// bridge). The staged copy then has x-bridge-carried too. A message with an order key must not be
// carried. An own table carries no messages.
//
// # A staged message
//
// A staged message is the final message, as the receiver will see it, plus headers. Headers are
// strings (AMQP long strings) except where another type is given. UUIDs are written as 36
// characters with hyphens. These five are required:
//
//	property or header    content
//	message-id            the ID, a UUID other than zero; the row in the ledger has the
//	                      same one
//	x-bridge-ledger       the ledger's identity, a UUID: table bridge_identity; for an own
//	                      table an identity is made from it (bridge.OwnTable)
//	x-bridge-exchange     the target exchange, empty for the default exchange
//	x-bridge-routing-key  the target routing key; with the default exchange the
//	                      name of a queue
//	delivery-mode         2; a confirm of a transient message promises nothing
//
// The verifier cannot check delivery-mode: by the time it reads the message, a transient one may be
// lost.
//
// The broker would act on the following properties while the message is in the staging queue. So
// they travel as headers, and the verifier restores them:
//
//	x-bridge-expiration   instead of expiration, in ms, at most ten years: a
//	                      committed message would expire while it waits
//	x-bridge-cc           instead of the header CC, a list of strings: copies would
//	x-bridge-bcc          leave before the commit; the same for BCC
//	x-bridge-user-id      instead of user-id: refused when another user forwards;
//	                      restored only where the verifier is configured to
//	x-bridge-priority     instead of priority, a decimal number from 0 to 255: quorum
//	                      queues of RabbitMQ 4 would deliver the message before others.
//	                      A message with the property priority instead keeps it
//
// Everything else stays in its place: body, content-type and content-encoding, correlation-id,
// reply-to (except direct reply-to, which is no target either), timestamp, type, app-id, headers of
// any AMQP type, trace context. All other headers whose names begin with x-bridge- are reserved.
// The verifier removes them, and also the headers that queues add (x-death, x-delivery-count and
// the like).
//
// The receiver's headers and properties together, with the message-id and without user-id, may have
// at most 64 KiB, the sum of
//
//	64                         for the frame and the properties that are no texts
//	its bytes                  for each text property
//	4                          for the table of headers
//	the bytes of its name + 1  for each header, and in addition for its value
//	5 + the content            if the value is a string, bytes, a table or a list
//	16                         if it has another type
//
// At most 1000 headers are allowed, not counting headers inside tables. A table or list in the
// headers may have at most 8192 elements, and the nesting may be at most 32 deep. amqp091-go reads
// no more: a larger delivery ends the connection of each consumer that uses the library alone, at
// each delivery. On a bridge.Connection, which verifiers and bridgectl use, the record of such a
// message arrives in its place ([Unreadable]), and the verifier dead-letters it as malformed.
//
// A staged message is published with the staging queue's name as routing key, mandatory, on a
// channel in confirm mode. It goes to the verifiers' exchange (bridge.Topology.Exchange,
// BRIDGE_EXCHANGE), a durable direct exchange, or without one to the default exchange. If the
// broker returns it, the queue or its binding is missing, and the transaction must roll back. It
// must also roll back at a nack (the queue is full), if the channel or the connection closes, and
// if no confirm comes in time, except for a message that its row carries.
//
// The header x-bridge-staged-at is the time at which the sender received the message from its
// caller, before it recorded the ID. It is a 64-bit integer (type l; any other type counts as
// missing), in ms since 1970. Unless the ID is a UUIDv7 of that moment, set it: without it a
// verifier cannot distinguish a swept row from a rollback ('The sweep' in package driver).
//
// The header x-bridge-carried, with any value, marks a message whose row in the ledger holds a copy
// of it, which the sender must have inserted. The header x-bridge-restaged, with any value, marks a
// message that a verifier has staged from its row. A sender must not set it: such a message is no
// evidence that senders commit (rule 6 of package bridge).
//
// # A message with an order key
//
// A message that must keep the order of its key has another header:
//
//	x-bridge-order-key    1 to 255 bytes, no NUL
//
// It is published to an ordered queue instead of the staging queue, through the same exchange with
// the ordered queue's name as routing key. The ordered queues are named Q.ordered.0 to
// Q.ordered.(N-1), where Q is the staging queue and N their number (bridge.Topology.OrderedShards),
// which must be the same for all senders. The number of a key's queue is the CRC-32 of the key's
// bytes (as in zlib, gzip and Ethernet; of "123456789" it is 0xCBF43926), modulo N. So with N = 8
// the key "123456789" belongs to Q.ordered.6.
//
// The message must have no priority. A sender that publishes several messages of one queue in a
// transaction must wait for the confirm of each before it publishes the next, or send them in one
// group. Each attempt to send a message needs a new ID, also when a rolled-back transaction is
// repeated ('In order, per key' in package bridge). An empty or too long key, and a priority beside
// a key, make the message malformed in any queue. In the staging queue a message with a valid key
// is treated like a message without one.
//
// # A group
//
// Several staged messages may travel as one, a group. A group has the headers x-bridge-group ("1")
// and x-bridge-ledger, and also x-bridge-staged-at and x-bridge-restaged if they apply to all
// members. Its message-id and its content type, application/vnd.twoqueue.group, are not read. Its
// body is the members' records, one after the other, at most 1000. A record is
//
//	uint32  length of the properties
//	        the properties of the staged message as in an AMQP 0-9-1 content
//	        header: property flags, then the property list, without cluster-id,
//	        which AMQP reserves; x-bridge-ledger and delivery-mode may be missing
//	uint32  length of the body
//	        the body
//
// with big-endian numbers. Each member is judged as if it had come alone. Groups are optional; one
// costs the broker as much as one message.
//
// # Messages in an inbox
//
// A message kept by an inbox (package idempotency) is no staged message any more. It is stored as
// it was delivered:
//
//	octet         the number of this form, 1
//	short string  the exchange to which the message was published
//	short string  the routing key
//	record        all its properties and headers, and the body
//
// # The other queues
//
// The waiting queue holds staged messages, alone or in groups, with these headers for the
// verifiers. All are 64-bit integers; times are in ms since 1970.
//
//	x-bridge-set-aside-at      when the message was put there
//	x-bridge-unroutable-since  when its target was first found missing
//	x-bridge-attempts          how many attempts to forward it failed
//	x-bridge-nacks             how often its exchange has nacked it
//	x-bridge-nacked-at         when it did so for the last time
//	x-bridge-touched-at        when the stage time of a carried message's row was
//	                           last moved on
//
// The staging queue and the waiting queue may hold markers, which verifiers send each other. A
// marker has an empty body and the headers x-bridge-marker ("1"), x-bridge-ledger, and
// x-bridge-marker-look (a 64-bit integer: the database's time of the verifier's look at the ledger,
// in us since 1970). It is never forwarded.
//
// A dead letter is a staged message with five more headers. All are strings except
// x-bridge-dead-attempts, a 64-bit integer. (A message that the broker itself moved there, at the
// delivery limit, has x-death instead.)
//
//	x-bridge-dead-reason    one of DeadReasons
//	x-bridge-dead-text      the reason in words
//	x-bridge-dead-verdict   "committed", or "unknown" if it could not be judged
//	x-bridge-dead-attempts  how many attempts to forward it failed
//	x-bridge-dead-at        RFC 3339, UTC
//
// If the message's own headers leave no room for these, or cannot be read, the dead letter has the
// header x-bridge-dead-record ("1") and the content type application/vnd.twoqueue.record. Its body
// is then the record of the message, as in a group, but with x-bridge-ledger in it.
//
// The audit queue holds messages as they were staged, with x-bridge-dropped-at (RFC 3339, UTC).
package wire
