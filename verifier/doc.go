// Package verifier judges staged messages: it forwards those whose transaction has
// committed and drops those whose transaction has rolled back.
//
//	ledger, err := postgres.Open(ctx, db) // or sqlserver, mysql, sqlite; migrate.Ledger has made its tables
//	broker, err := bridge.Dial(ctx, "amqp://verifier:secret@localhost/", nil)
//	options := &verifier.Options{
//		Allow:   []verifier.Allow{{Exchange: "orders", RoutingKey: "*"}},
//		Watcher: postgresinspect.New(ledger), // the log says whose transaction holds a message up
//	}
//	db.SetMaxIdleConns(options.Connections()) // database/sql keeps 2
//	v, err := verifier.New(ledger, broker, options)
//	err = v.Run(ctx) // makes the queues; until ctx ends, then drains
//
// The program cmd/verifier is this package as a worker with metrics and a configuration
// from the environment. Run that, unless you want the verifier in a process of yours. Any number of verifiers may consume one
// staging queue; none of them holds state that matters. Package bridge is the protocol,
// with its words and rules; package sender the other side.
//
// # What it promises, and what it does not
//
// A message of a committed transaction arrives at its target at least once, or in the
// dead queue, or stays in its queue while it is larger than the broker takes. One of a
// rolled-back transaction never arrives. A copy that comes twice has
// the same ID. Messages without an order key do not keep their order: each is forwarded when
// its own transaction is known to have committed, and its own target takes it. The bodies
// are never looked into.
//
// # What happens to a message
//
//   - Lookup. Deliveries gather into batches; one statement that never waits asks
//     which of the IDs are in the ledger. Those that are have committed.
//   - Waiting room. The others may be uncommitted, rolled back, or committed a
//     moment ago. Options.Settlers of them are settled at a time, each by a
//     statement that waits on the row lock of the open transaction; only this may
//     say 'rolled back'. The rest of the room is looked up again with later
//     batches and whenever a transaction has ended, since its messages share its
//     fate. Those that have waited for 100 ms are slow ones: they are looked up
//     every 100 ms only, and half of the settlers are kept from them, so that
//     many open transactions cost the others little.
//   - Waiting queue. A message that waits for longer than Options.Patience, or is
//     one too many in the room, is copied to the waiting queue with a confirm and
//     then acked; small ones go there in groups. Verifiers consume that queue too, on
//     a channel of its own with a prefetch of its own. While more wait in it than a
//     verifier may hold, each goes round: it is looked up and copied to the queue's end.
//     The longer a round takes, the shorter a message stays with the verifier, down to
//     50 ms: so a message behind very many others is soon seen. A transaction that
//     stays open for hours, with more messages than fit into any memory, delays its own
//     messages only. No message is held longer than the broker's consumer timeout allows.
//   - Forward. The message is published to its target, mandatory and persistent,
//     without waiting for others. It is safe once it is confirmed and was not
//     returned.
//   - Forget, then ack. Its row is deleted, in batches; then it is acked, as one of
//     many. A crash in between leaves a redelivery that is absent and dropped.
//
// A delivery may be a group of messages (package wire). Each is judged by itself,
// and the delivery is acked when the last of them is done.
//
// The cost of all this is per burst rather than per message. Up to 500 messages a
// second none waits for company on its way; from there to 1,500 a second lookups
// gather for up to 6 ms, and from 1,000 a second on a message is settled by itself
// only when it is 25 ms old. Deletes, which nobody waits for, gather for 30 ms at
// every rate. So if the verifier is killed, the messages of those 30 ms come twice.
//
// # Messages in order
//
// Messages with an order key come from the ordered queues (Options.Topology.OrderedShards).
// Each of these queues has a single active consumer: one verifier gets its messages, and if
// that one goes, the next. What is promised is in package bridge. It rests on this:
//
//   - The broker delivers an ordered queue in order. When a consumer goes with its channel,
//     the queue delivers what was unacked again, at its old place (measured on 3.10.8 and
//     4.3.6).
//   - Messages are looked up and settled in any order, together with all others. They are
//     forwarded key by key in the order of the queue: a message waits until every earlier one
//     of its key is dropped, or confirmed at its target or in the dead queue. So one message
//     of each key is on its way at a time, and all keys are beside each other.
//   - Nothing of an ordered queue is nacked or set aside. What a verifier must not hold any
//     longer it gives back by closing the queue's channel. It does that when a message is
//     held for Options.HandBack, and when messages had no room in Options.MaxBytes, half of
//     the room is free again, and the first of them fits into it. It lets what is on its way
//     come to its end before, except at targets that are held: this may come twice. The
//     session goes on, with a new channel for that queue.
//   - A verifier that was frozen, or cut off, forwards what it has in order as well, and
//     confirmed before the next. Whatever the other verifier does meanwhile, the first copy
//     of a message is there before the first copy of the next.
//
// In a RabbitMQ cluster before 4.2.6, deliveries that got lost on the way to a channel and are
// fetched again from the queue may come out of order (rabbitmq-server, pull request 14386;
// mended by 15883 and 16008).
//
// So an open transaction holds its key, as does a target that is full or missing. The
// messages behind it take room: when there are 500 of them, or they fill their share of
// Options.MaxBytes, they hold the whole ordered queue. State.Keys tells which keys wait, and
// for which message. When a message goes to the dead queue its key goes on, unless
// Options.HoldKeys says otherwise. A message that is larger than the broker takes by now
// holds its key.
//
// # Parked messages and orphan rows
//
// What senders have parked in the database during an outage of the broker is staged when
// a session starts. After that the verifier looks for it at growing intervals, up to about
// 15 s. Then it takes the way of all others. A message whose confirm was only late
// was parked and staged both, and may be delivered twice, with the same ID. One that the
// broker refuses, as a rule for its size, stays parked and is passed by; the log names it.
//
// Rows that are older than Options.SweepAge are removed while the queues are empty, at
// the start of a session and every ten minutes (with Options.HoldKeys only by a verifier that
// has received something from every ordered queue): their messages are gone, since somebody
// has purged or deleted a queue. Should one turn up after all, it goes to the dead queue;
// why that can never be a drop is argued in package driver.
//
// Copies of what was dropped as rolled back are kept in the audit queue if
// Options.Topology.Audit says so.
//
// # Targets that take nothing
//
// A full queue (nack), a missing one (return, or 404) and one that never confirms
// hold up nobody else: such a target is held, its messages wait beside the others,
// and it is tried again with backoff. A target counts as one that never confirms when
// what was published to others a second later has its confirm; it is then tried with one
// message at a time, over a connection of its own. A burst to it (32 messages) can make
// RabbitMQ stop reading the whole connection within that second. After a second of silence
// it is held then too, and what was published to others later than all that is confirmed is
// published again on another connection. It may be delivered twice by this, with the same
// ID. If a target confirms nothing from the first message on, there is nothing to tell it
// by: then the others wait for Options.ConfirmTimeout, once. A missing target is given up after
// Options.Unroutable. A publish that the broker refuses with an error closes its
// channel and leaves everything in flight there unknown; those messages are
// published again one at a time, so that the culprit shows itself. The others may
// be delivered twice by this, with the same ID.
//
// # Side jobs
//
// Unparking, sweeping and explaining are side jobs: no message waits for them, and
// whatever goes wrong in them ends no session (rule 12 of package bridge). The log says
// when one begins to fail, and when it has worked for a minute since. An Observer may
// panic without harm, but it must not block: messages wait until it returns.
//
// # The dead queue
//
// What can be neither forwarded nor rightly dropped goes there, as it was staged,
// with the reason in its headers (wire.HeaderDeadReason and the following):
//
//	malformed    does not follow the wire format; could not be judged
//	foreign      carries another ledger's identity; could not be judged
//	not-allowed  committed, but its target is not on the allow-list, or is one of the
//	             verifier's own queues
//	refused      committed, but the broker refuses it at its target for good
//	unroutable   committed, but its target was missing for too long
//	swept        its row is absent, but may have been removed as an orphan
//
// The row of a committed one is deleted as soon as it is safe there: so it must not be put
// back into the staging queue, where it would be dropped. bridgectl dead replay brings
// such messages to their targets.
//
// A message whose own headers leave no room for the reason's becomes a record in the body
// of a dead letter (wire.DeadRecord); bridgectl reads both forms alike.
//
// A message that is larger than the broker takes by now (RabbitMQ 3.x takes 128 MiB by
// default, 4.x takes 16 MiB) can be published nowhere on it, neither whole nor as a record.
// It stays in its queue, and its row stays. The log names it, and State.Stranded counts it.
// The verifier keeps it unacked without its content, and tries again after
// Options.HandBack. Raise max_message_size, and it goes on its way. Each such message takes
// one of the places that its queue has here: as many of them stop that queue.
//
// # Memory
//
// A verifier holds at most Options.Prefetch messages of the staging queue, half as many (at
// least 20) of the waiting queue and 500 of each ordered queue, and of their content at most
// Options.MaxBytes, or one larger message of each queue. RabbitMQ knows no bound in bytes.
// The verifier drops the content of what exceeds the bound, keeps it unacked, and hands it
// back once there is room, in the order of arrival. So large messages may travel more than
// once to a verifier that is short of room.
// RabbitMQ before 4.3 counts that as deliveries, of a million that the queues allow.
// Beside this a verifier holds copies of what it is setting aside, and what a connection is
// reading or writing at the moment.
//
// # Errors and the end
//
// On any error of the database, of a connection or of the consuming channels in the way
// of a message the session is thrown away whole: everything unacked is redelivered, and a
// new session starts with backoff, connects, and proves again that the database makes a
// lookup wait (driver.Prove). Delivery tags never outlive their channel.
// Every session begins by dropping the pool's idle connections that are broken.
// A pooled database connection that dies while it is idle is replaced without a new
// session: what guards its successor is that the ledgers check their identity with
// every outcome.
//
// When the context of Run ends, what has been judged is brought to its end for at
// most Options.Drain, and the rest is handed back; Run returns ErrNotDrained if not all
// that was judged is through by then. The consumer is not cancelled before that, since
// RabbitMQ 3.10 loses acks of a quorum queue that follow a cancel; so some messages may
// be delivered to the ending verifier once more, and go back with its channel.
package verifier
