// Package idempotency lets a receiver handle each message once, although the
// broker may deliver it more than once.
//
// # Why messages come twice
//
// The bridge delivers every committed message at least once: a verifier that
// dies between the broker's confirm and its own bookkeeping forwards the message
// again, and a receiver that dies between its commit and its ack is given it
// again. All copies carry the same message ID. The ID is the idempotency key.
//
// # What a Guard does
//
// A [Guard] runs the receiver's function in a transaction that first claims the
// key in the receiver's own database (a row in the inbox: consumer name and key).
// Claim and effects commit together or not at all; the ack comes after the
// commit. So
//
//   - a crash before the commit leaves neither claim nor effects, and the
//     redelivery is handled as new;
//   - a crash after the commit, before the ack, is met by the claim: the
//     redelivery is acked and skipped;
//   - of two consumers that are given the same key at the same moment the second
//     waits in its claim for the first one's end, and then skips, or takes over
//     if the first rolled back.
//
// Only what goes through the transaction is exactly once. An effect outside of
// it (an e-mail, a call) may be repeated when the attempt fails afterwards, or
// the process dies.
//
// # What becomes of a delivery
//
// Every call of [Guard.Handle] ends in one of four outcomes, counted in [Stats]:
//
//	handled        committed and acked                          returns nil
//	duplicate      had been handled before; acked               returns nil
//	dead-lettered  refused for good, and safe somewhere else    returns nil
//	handed back    requeued; the broker delivers it again       returns an error that is ErrHandedBack
//
// If an ack does not reach the broker, the outcome stands and Handle returns an
// error that is [ErrNotAcked]: the message comes again, and is then a duplicate.
// So the plain loop is right:
//
//	for d := range deliveries {
//		if err := guard.Handle(ctx, db, d, handle); err != nil {
//			slog.Error("delivery not finished", "err", err)
//		}
//	}
//
// A loop like this handles one message at a time, and one that fails keeps the
// others waiting for the length of its retries. A Guard may be used by any
// number of goroutines: start a few such loops on one delivery channel, with a
// prefetch of at least their number.
//
// # Who is to blame for a failed attempt
//
// The handler, if it returns an error, panics, or the database refuses the
// commit (a deferred constraint, a statement whose error was swallowed), and the
// connection still answers afterwards. Such an attempt counts. It is tried again
// at once, in a fresh transaction, with growing pauses; after Options.Attempts
// failures in one delivery the message is dead-lettered. The attempts are made
// while the delivery is held because nothing else counts them reliably: classic
// queues tell only that there was an earlier delivery, RabbitMQ 4.3 does not
// count a nack, and a store of attempts would grow.
//
// The database, if no transaction can be begun, the claim fails, or the
// connection is dead after the attempt. This never counts. It is tried again for
// as long as the delivery may be held (Options.Hold), then handed back. A commit
// whose answer was lost is of this kind: the next claim waits for the truth, and
// finds the key if the commit did happen.
//
// Nobody, if the caller's context has ended or the delivery has been held for
// too long: whatever the attempt says then, it is handed back.
//
// A message without a usable ID (empty, longer than 255 bytes, not UTF-8, or
// with a NUL byte) cannot be told from its copies. It is never handled, and dead-
// lettered without an attempt.
//
// # Where dead-lettered messages go
//
// The Guard cannot see whether a queue has a dead-letter exchange, and a message
// that is rejected on a queue without one is lost. So it rejects nothing unless
// told: with Options.DeadLetterExchange it rejects the message and the broker
// moves it; with Options.DeadLetter it calls a function of yours and acks only
// when that one has stored the message. With neither, the message is handed back
// after a pause, again and again, which is noisy but loses nothing in itself.
//
// # What the queue must be like
//
// A quorum queue counts how often a message was requeued, on RabbitMQ 4.0 to 4.2
// also by a nack, and beyond its delivery limit (20 unless set, from 4.0 on)
// drops it, or dead-letters it if it has a dead-letter exchange. A long outage of
// the database could reach that limit. Give the queue a dead-letter exchange and
// a large positive delivery limit. The limit also catches what no code in the
// process can: a message whose handling kills the process each time.
//
// Consume with manual acks, on a channel that the client library does not
// recover by itself: after a recovery delivery tags start again, and the ack of
// an old one may ack a message that nobody has handled.
package idempotency
