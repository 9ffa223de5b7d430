// Package idempotency lets a receiver handle each message once, although the broker may deliver it
// more than once.
//
//	inbox, err := postgres.OpenInbox(ctx, db) // or sqlserver, mysql, sqlite; migrate.Inbox has made its tables
//	queues, err := idempotency.DeclareReceiver(ctx, broker, "emails", nil) // broker is a *bridge.Broker
//	dedup, err := idempotency.New(inbox, "mailer", &idempotency.Options{Queues: queues})
//	consumer, err := idempotency.NewConsumer(broker, "emails", func(ctx context.Context, d amqp.Delivery) error {
//		return dedup.Handle(ctx, db, d, func(ctx context.Context, tx *sql.Tx) error {
//			_, err := tx.ExecContext(ctx, `INSERT INTO emails …`, d.Body)
//			return err
//		})
//	}, &idempotency.ConsumerOptions{Workers: 20})
//	err = consumer.Run(ctx) // until ctx ends
//
// A [Consumer] connects, works in parallel, reconnects and drains. Its handler calls a strategy,
// which handles each message once:
//
//	the receiver ...                                   use                                the inbox keeps
//	changes its own database                           Deduplicator.Handle, HandleBatch   a key per message
//	does something outside of it that must not be      pending.Effects.AtMostOnce         a key per message; the message
//	repeated: an e-mail, a payment                                                        once it is in doubt or failed
//	takes long, or wants failed messages kept          pending.Worker.Accept              a key per message; the message
//	                                                                                      until it is done
//	gets the whole state of an entity in each event    versions.Latest                    a version per entity
//	gets changes of an entity that need their order    versions.Ordered                   a version per entity; early events
//	gets messages in the order of growing keys         versions.HighWater                 a key per source
//
// If an outside service accepts an idempotency key, as many payment services do, use Handle and
// pass the message ID to the service: then a repetition does no harm. Each consumer name belongs to
// one strategy. The package also works without a sender and a verifier of this module: a message
// only needs an ID.
//
// The examples are whole programs, in this folder's files example_*_test.go: a receiver, one that
// replies in its transaction (example_reply_test.go), one that handles batches. Package otelhandler
// continues the sender's trace, package metrics is a Prometheus collector, and package
// idempotencytest makes deliveries for unit tests.
//
// # How a Deduplicator works
//
// A [Deduplicator] claims a message's key: it inserts a row with the consumer name and the key into
// the inbox, in the transaction of the handler. Claim and effects commit together or not at all,
// and the ack comes after the commit. So
//
//   - a crash before the commit leaves neither claim nor effects, and the redelivery is handled as
//     new;
//   - after a crash between the commit and the ack the claim is there, and the redelivery is acked;
//   - if two receivers get the same key at the same moment, the second claim waits until the first
//     transaction has ended, then skips the message, or takes over after a rollback.
//
// Only effects in the transaction happen exactly once. An effect outside of it may be repeated.
//
// [Deduplicator.Handle] begins and commits the transaction; package pgxreceiver does so with pgx.
// If you begin and commit yourself, with any library, use [Deduplicator.HandleWithClaim].
// [Deduplicator.HandleBatch] handles many messages in one transaction. A handler sends its [Reply],
// or any other message, in the same transaction: s.SendTx(ctx, bridge.SQL(tx), message), with a
// *sender.Sender.
//
// # Outcomes of a delivery
//
// Each call of a strategy has one of these outcomes, counted in [Stats]:
//
//	handled        committed and acked (a Consumer may ack 5 ms later) returns nil
//	duplicate      handled before; acked                              returns nil
//	stale          a later version was handled before; acked          returns nil
//	kept           stored, to be handled later; acked                 returns nil
//	doubtful       stored, it is unknown if it was done; acked        returns nil
//	dead-lettered  refused for good, and safe somewhere else          returns nil
//	retried later  an attempt failed, a retry queue has a copy; acked returns nil
//	handed back    requeued; the broker delivers it again             ErrHandedBack
//	left unacked   the receiver stops, and the end of the channel     ErrLeftUnacked
//	               returns it to the queue
//
// If an ack does not reach the broker, the outcome stands and the error is [ErrNotAcked]: the
// message comes again, as a duplicate. After a runtime.Goexit in the handler the message is handed
// back.
//
// # Failed attempts
//
// A failed attempt counts if the handler is to blame: it returns an error or panics, or the
// database refuses the commit, and the connection still answers afterwards. After Options.Attempts
// such attempts the message is dead-lettered. If no retry can help, for example because the body
// cannot be decoded, the handler returns backoff.Permanent(err), of github.com/cenkalti/backoff/v5:
// the message is dead-lettered at once, with err as the reason.
//
// A failed attempt does not count in these cases:
//
//   - the handler returns an error of package bridge for which the message is not the cause: the
//     broker is unavailable, blocks or does not confirm, a queue is full or missing, a login is
//     refused, a commit is unknown
//   - the handler returns an error of the database for which the message is not the cause: a
//     deadlock, a failed serialization, a lock wait that the server ended, a server that stops or
//     lacks a resource (Transient of driver.Transactions)
//   - the handler returns [RetryLater], for any other cause outside of the message
//   - no transaction can be begun, the claim fails, or the connection is dead after the attempt
//     (with the exception below)
//   - Options.Hold has ended
//
// After RetryLater the message waits as RetryLater says. In all other cases the Deduplicator tries
// again in place, with pauses of at most 10 seconds, until Options.Hold ends, and hands the message
// back.
//
// A handler that loses the connection each time, for example by a statement too large for the
// server, looks like a failure of the database. So a lost connection counts if the Deduplicator has
// handled other messages since this message's previous lost connection: then the database works.
// While no other messages come, lost connections count after an hour and 20 in a row, each of which
// the database has survived: within a second it answered on another connection. Each process counts
// for itself. So in an outage no message is given up. A COMMIT without an answer does not count: the
// next attempt finds out whether it has succeeded.
//
// A message that cannot be read, or whose key cannot be used (Options.Key), is dead-lettered
// without an attempt.
//
// # Retry queues
//
// [DeclareReceiver] declares a receiver's queue, retry queues with fixed delays, and a dead queue.
// A message whose attempt failed is published to a retry queue, confirmed, and then acked, so it
// keeps no worker. After the delay the broker moves it back to the end of the receiver's queue. The
// number of its attempts travels in the header x-bridge-attempts, which no redelivery resets. The
// broker may move a message twice, and if the process or the connection ends between the confirm
// and the ack, the message and its copy are both in the queues. Once one of them is handled, the
// other is a duplicate; if both fail, the dead queue gets both.
//
// A Consumer restores the properties that would act in a retry queue, but not the user-id. The
// broker's own headers, such as x-death, are lost.
//
// A message is retried in place, which keeps its worker, in these cases:
//
//   - the attempt did not count (except after RetryLater), because otherwise all messages would
//     circulate through the retry queues
//   - later messages would overtake: in a Consumer with a Key or one worker, with
//     ReceiverOptions.SingleActiveConsumer, and with versions.Ordered and versions.HighWater
//   - no retry queue takes the copy, or there are none
//
// # Where dead-lettered messages go
//
// With Options.Queues, to the queue QUEUE.dead, confirmed, with the reason and the number of
// attempts. bridgectl dead list, show and replay handle them, and messages that the broker moves
// there at the delivery limit. Options.DeadLetter stores messages elsewhere.
//
// With Options.DeadLetterExchange the Deduplicator rejects the message and the broker moves it. The
// Deduplicator cannot see whether it arrives: the message is lost without a dead-letter exchange,
// and by default also if the dead queue is missing, full or without a leader. To avoid that, the
// receiver's queue must be a quorum queue with x-dead-letter-exchange (and a binding, or
// x-dead-letter-routing-key), x-dead-letter-strategy at-least-once, and x-overflow reject-publish.
// DeclareReceiver sets these, and bridgectl doctor --receiver QUEUE checks them.
//
// # Requirements of the queue
//
// A quorum queue counts redeliveries. Beyond its delivery limit (20 from RabbitMQ 4.0 on unless
// set) it dead-letters the message, or drops it without a dead-letter exchange. Only this limit
// stops a message whose handling kills the process. But each end of a channel counts for all
// unacked messages, and before RabbitMQ 4.3 each hand-back counts too. So DeclareReceiver sets the
// limit to 100: enough for a hundred deployments or crashes while a message waits, and for eight
// hours without the database.
//
// Declare queues some seconds before their first message: see bridge.Topology.Declare.
//
// # Keys and their age
//
// The key is the message ID, unless Options.Key returns another, such as an order's number, for
// senders that may send an order again under a new ID. Keys are kept for Options.Retention (its
// comment describes the fate of a later copy), and an hour longer, so that clocks may differ by
// that much. The Deduplicator deletes older ones as it handles messages, up to 500 for every 200
// messages; [Deduplicator.Purge] deletes a backlog.
//
// # Your own loop
//
// Instead of using a Consumer, you may consume with manual acks on a channel that the client
// library does not recover by itself: after a recovery an ack with an old tag may ack another
// message. Call wire.Restored of package bridge/wire before you look at a message. Keep prefetch /
// goroutines * Options.Hold below the broker's consumer timeout, where goroutines is how many
// goroutines call Handle. When ctx ends, end the loop and close the channel, and requeue nothing
// ([ErrLeftUnacked]; measured with a delivery limit of 20: ten of ten messages were gone within 3
// seconds). Close the channel also when its deliveries end (rabbitmq-server, issue 17317).
package idempotency
