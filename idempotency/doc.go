// Package idempotency lets a receiver handle each message once, although the
// broker may deliver it more than once.
//
//	inbox, err := postgres.OpenInbox(ctx, db) // or sqlserver, mysql, sqlite; migrate.Inbox has made its tables
//	queues, err := idempotency.DeclareReceiver(ctx, broker, "emails", nil)
//	guard, err := idempotency.New(inbox, "mailer", &idempotency.Options{Queues: queues})
//	consumer, err := idempotency.NewConsumer(broker, "emails", func(ctx context.Context, d amqp.Delivery) error {
//		return guard.Handle(ctx, db, d, func(ctx context.Context, tx *sql.Tx) error {
//			_, err := tx.ExecContext(ctx, `INSERT INTO emails …`, d.Body)
//			return err
//		})
//	}, &idempotency.ConsumerOptions{Workers: 20})
//	err = consumer.Run(ctx) // until ctx ends
//
// The broker is a *bridge.Broker. A [Consumer] connects, works in parallel, reconnects and drains. A
// strategy, such as [Guard.Handle], handles each message once, and also works without a Consumer.
// The package needs no sender and no verifier of this module: any message with an ID will do. The
// examples (example_*_test.go in this folder) show a whole receiver, each strategy, and a request
// with its reply.
//
// # Why messages come twice
//
// The bridge delivers every committed message at least once. If a verifier dies between the
// broker's confirm and its own bookkeeping, the message is forwarded again. If a receiver dies
// between its commit and its ack, the message is redelivered. All copies carry the same message
// ID, which is the idempotency key.
//
// # Which strategy for which case
//
//	the receiver ...                                    use                    the store keeps
//	changes its own database                            Guard.Handle,          a key per message
//	                                                    Guard.HandleBatch
//	does something outside of it that must not be       Guard.AtMostOnce,      a key per message; a row while
//	done twice: an e-mail, a payment                    with Guard.Resume      it is done or in doubt
//	takes long, or wants failed messages kept           Guard.Accept and Work  a key per message; the message
//	                                                                           until it is done
//	gets the whole state of an entity in each event     Latest                 a version per entity
//	gets changes of an entity that need their order     Ordered                a version per entity; what is early
//	gets messages of a source in the order of growing   HighWater              a key per source
//	keys, from one queue with one consumer
//
// If the outside service takes an idempotency key, as many payment services do, Handle is
// better than AtMostOnce: pass the message ID, and repeat. A consumer name belongs to one
// strategy. The strategies in the first three rows refuse a key that tells its age and is too
// old to judge; see below.
//
// # What a Guard does
//
// A [Guard] runs the receiver's function in a transaction that first claims the key in the
// receiver's own database: it inserts a row with the consumer name and the key into the inbox.
// Claim and effects commit together or not at all. The ack comes after the commit. So
//
//   - a crash before the commit leaves neither claim nor effects, and the
//     redelivery is handled as new;
//   - after a crash between the commit and the ack the claim is there, and the redelivery is
//     skipped and acked;
//   - if two consumers are given the same key at the same moment, the claim of the second waits
//     until the first has ended. Then the second skips the message, or takes over if the first
//     rolled back.
//
// Only effects in the transaction happen exactly once. An effect outside of it (an e-mail, a
// call) may be repeated if the attempt fails afterwards or the process dies. [Guard.AtMostOnce]
// is for such effects.
//
// Handle begins and commits that transaction, and package pgxreceiver one of pgx. [Guard.HandleBatch]
// handles many messages in one transaction. If you begin and commit yourself, with any library,
// [Guard.HandleTx] claims in your transaction, and acks when it has seen the claim committed.
//
// # What becomes of a delivery
//
// Every message of a call of [Guard.Handle], [Guard.HandleBatch], [Guard.HandleTx], [Guard.AtMostOnce] and [Guard.Accept], and of
// the Handle of [Latest], [Ordered] and [HighWater], has one of these outcomes, counted in
// [Stats]:
//
//	handled        committed and acked                          returns nil
//	duplicate      had been handled before; acked               returns nil
//	stale          of Latest: a later version had been; acked   returns nil
//	kept           stored, to be handled later; acked           returns nil
//	doubtful       stored, it is unknown if it was done; acked  returns nil
//	dead-lettered  refused for good, and safe somewhere else    returns nil
//	retried later  an attempt failed; a copy is in a retry      returns nil
//	               queue (Options.Queues), and d is acked
//	handed back    requeued; the broker delivers it again       returns an error that is ErrHandedBack
//	left unacked   the receiver stops; the broker delivers it   returns an error that is ErrLeftUnacked
//	               again when its channel is closed
//
// A call whose goroutine ends in the handler (runtime.Goexit) hands the message back too.
// It cannot return the error, and logs it.
//
// If an ack does not reach the broker, the outcome stands and Handle returns an
// error that is [ErrNotAcked]: the message comes again, and is then a duplicate.
// A Consumer logs these errors and goes on.
//
// # Batches
//
// [Guard.HandleBatch] shares round trips, the commit and the ack among many messages. It suits
// many small messages; [NewBatchConsumer] gathers them:
//
//	consumer, err := idempotency.NewBatchConsumer(broker, "emails", 100, func(ctx context.Context, ds []amqp.Delivery) error {
//		return guard.HandleBatch(ctx, db, ds, func(ctx context.Context, tx *sql.Tx, fresh []amqp.Delivery) error {
//			return insertEmails(ctx, tx, fresh)
//		})
//	}, &idempotency.ConsumerOptions{Workers: 2})
//
// A failing handler takes the batch apart: each message is handled alone, so one that cannot be
// handled is retried and dead-lettered alone, and the others are handled at once. A crash before the
// commit redelivers the whole batch, and a crash between commit and ack too, as duplicates.
//
// A transaction holds the claims of all its messages until its end, so another receiver's copy of
// one of them waits that long. Keys are claimed in their order, so that batches with some of the
// same messages do not wait for each other in a circle. Should the database see a deadlock all the
// same, the batch is tried again.
//
// # How many at once
//
// A Guard may be used by any number of goroutines. Without retry queues, a message that fails keeps
// one for the length of its retries: give a Consumer more Workers than messages fail at once.
//
// # To stop
//
// End the context of Consumer.Run. The attempts in progress have ConsumerOptions.Drain to finish.
// All other messages that were delivered are left unacked, and the end of the connection returns
// them to the queue.
//
// A receiver that stops requeues nothing. The broker would deliver a requeued message again at
// once, to the receiver that stops, and a quorum queue would dead-letter or drop it at its
// delivery limit (measured with a limit of 20: ten of ten messages were gone within 3 seconds).
//
// # A loop of your own
//
// With a loop over deliveries in the place of a Consumer, end the loop when ctx ends, then close
// the channel; a loop that only ranges over deliveries takes messages until then. Consume with
// manual acks, on a channel that the client library does not recover by itself: after a recovery
// delivery tags start again, and an ack with an old tag may ack a message that was not handled.
// The attempt in progress may go on for Options.Drain.
//
// The broker's consumer timeout begins when the broker delivers, Options.Hold when Handle is
// called. Divide the prefetch by the number of goroutines that call Handle and round up: so many
// times Hold must stay below the consumer timeout. Close the channel when its deliveries end. A
// cancelled consumer that acks late may be given messages again, which nothing reads
// (rabbitmq-server, issue 17317).
//
// # Traces
//
// Package otelhandler goes on with the sender's trace, by OpenTelemetry.
//
// # Unit tests
//
// Package idempotencytest makes deliveries by hand, which tell whether they were acked.
//
// # Who is to blame for a failed attempt
//
// The handler is, if it returns an error, panics, or the database refuses the commit (a
// deferred constraint, a statement whose error was ignored), and the connection still answers
// afterwards. Such an attempt counts. The Guard tries again in a fresh transaction, after growing
// pauses, and dead-letters the message after Options.Attempts failures. With Options.Queues the
// message waits in retry queues; see below. Otherwise the Guard holds the delivery, by default for
// between three and four minutes, because nothing else counts attempts reliably: classic queues tell
// only that there was an earlier delivery, RabbitMQ 4.3 does not count a nack, and a table of
// attempts would grow. So a message that fails keeps one goroutine and one place in the prefetch for
// that time.
//
// The broker or the database is, and the attempt does not count, if the handler returns
//
//   - an error of package bridge that says so: the broker is away, blocks or does not confirm, a
//     queue is full or missing, a login is refused, the schema is missing, a commit is unknown;
//   - an error of the database that says so: a deadlock, a failed serialization, a wait for a lock
//     that the server ended, a server that stops or lacks a resource (Transient of driver.Marks);
//   - [RetryLater], for all else that no message causes: a service that is away for an hour.
//
// The same holds if no transaction can be begun, the claim fails, or the connection is dead
// after the attempt. The Guard tries again for as long as it may hold the delivery (Options.Hold),
// with pauses of at most 10 seconds, then hands it back. A commit whose answer was lost is of this
// kind. The next claim waits until that transaction has ended, and finds the key if it committed.
//
// So a handler which itself loses the connection each time, by a statement larger than the
// server takes or a pause longer than the server waits in a transaction, is taken for a
// database that fails: its message is never dead-lettered by the Guard, and goes round. So does
// one for which the handler returns RetryLater each time.
// You see it in the warnings of failed attempts that say failed=0, and in Stats.HandedBack,
// which grows while FailedAttempts does not. The queue's delivery limit ends it where the
// broker counts a nack; see below.
//
// An attempt that ends after the caller's context has ended, or after Options.Hold, does not count,
// whatever its error is. The message is left unacked or handed back.
//
// If a message's ID is empty, longer than 255 bytes, not UTF-8, or contains a NUL byte, its
// copies cannot be recognised. It is dead-lettered without an attempt.
//
// # Effects outside of the database
//
// No protocol makes an effect outside of the database happen exactly once. Handle may repeat
// it. AtMostOnce never does: its row says 'started' before the effect begins, and whoever finds
// that row later does not begin again. Somebody must then find out whether the effect happened.
// For that the inbox keeps the key, the time, the error and the whole message.
//
//	Started   the effect may be under way                 wait
//	Doubtful  it may have happened                        look outside; MarkDone or Retry
//	Ready     it did not happen, and shall                Resume does it
//	Failed    it did not happen, in Options.Attempts      mend the cause; Retry or MarkDone
//
// [Guard.CountPending] is the metric to alert on, which package idempotency/metrics collects.
// [Guard.Pending] is the list for the operator. bridgectl pending list shows it, and bridgectl
// pending retry and done decide. A message whose effect certainly did not happen ([NotDone]) is
// not in doubt, once the inbox knows: if the process dies before that is committed, or the database does not
// answer until Options.Hold ends, the row still says 'started', and becomes doubtful. Run
// [Guard.Resume] somewhere, or nobody does what is Ready.
//
// # Entities, versions and sources
//
// [Latest], [Ordered] and [HighWater] keep one row for each entity or source, not one per
// message. Nothing is purged.
//
// Latest locks the entity's row, even if it does not exist yet, and handles an event only if
// its version is higher. A version that was overtaken is never handled. Ordered handles version
// n only after n-1 and keeps what comes early; Watch reports what waits too long. A missing
// version stops only its own entity; Skip goes on without it. One version that is far too high
// makes an entity of Latest, or a source of HighWater, ignore all later messages until a Reset.
// Operators use bridgectl gaps list, gaps skip and marks reset. HighWater handles a message only
// if its key is above the mark. It takes a late message for a duplicate, which loses it: read
// its comment first.
//
// A handler that answers sends its [Reply] with sender.SendTx in its transaction. So the
// request is handled and the reply sent, or neither.
//
// # Keys, their age, and the purge
//
// The key is the message ID, unless Options.Key returns another. Use the number of an order,
// for example, if a restarted sender may send the same order under a new ID. Each consumer name
// has its own keys.
//
// Keys are kept for Options.Retention. Handle, HandleBatch, HandleTx, AtMostOnce and Accept delete older
// ones as they go: after every 200 messages, once the last one is acked, short transactions read
// 8 keys, and if these do not tell that all are young, 500. If some are old, another one deletes
// them. Stats.Purged and
// Stats.PurgePasses show the progress; [Guard.Purge] works off a backlog. The purge follows the
// primary key, which has UUIDv7 and ULID keys in the order of their age. So it finds the old
// ones first and skips the others, and needs no index that would make every claim slower.
//
// A UUIDv7 or ULID tells when it was made. If that is longer ago than the retention, a key that
// is not in the inbox may have been deleted from it. So its message is not handled as new, but
// dead-lettered with [ErrTooOld] as the reason. A key is deleted only an hour after it has
// become too old, so that receivers whose clocks differ by less agree.
//
// Any other key tells nothing. It is deleted when its claim is older than the
// retention, and a copy that comes later is handled again, as new. Choose a retention
// beyond which no copy can come, also from a dead queue that somebody puts back, or
// keep such keys for ever (a negative one). They are purged by walking through all of
// them, 500 at a time. Each process makes one step at the first key, and then walks on from
// the key of a message that it has just handled: so the purge comes to all keys although
// processes are restarted, if new keys are spread over all.
//
// # Retry queues
//
// [DeclareReceiver] declares the queue of a receiver, retry queues beside it, each with a fixed
// delay, and a dead queue; its result is Options.Queues. When an attempt fails and counts, or
// returns RetryLater, the Guard publishes a copy of the message to a retry queue, waits for the
// confirm, and acks the delivery. When the delay is over, the broker moves the copy to the end of
// the queue, at least once. So a message that fails keeps no worker and no place in the prefetch. By
// default 13 attempts take more than 18 minutes. [Attempt] tells the handler their number.
//
// The number of failed attempts travels in the header x-bridge-attempts of the copy. Every process
// sees it, and no redelivery resets it. If a process dies between the confirm and the ack, the
// message and its copy are both in the queues, each with its own number. The inbox takes the second
// that is handled for a duplicate. If neither can be handled, both are dead-lettered.
//
// Expiration, user-id, CC and BCC would act in a retry queue, so they travel in other headers there.
// A Consumer restores all but the user-id, which RabbitMQ has not checked in a header, and the
// exchange and the routing key, before the handler sees the message (wire.Restored of package
// bridge/wire; a loop of your own must call it first). The broker's own headers, such as x-death,
// are lost.
//
// A message is retried in place, with the delivery held as without retry queues, if
//
//   - neither it nor RetryLater is the cause: the database is away, for example. All messages would
//     go round then;
//   - a message in a retry queue would be overtaken: in a Consumer with a Key or one worker, with
//     ReceiverOptions.SingleActiveConsumer, and by Ordered and HighWater. (In a loop of your own
//     nothing else keeps messages out of retry queues: leave them away if the order counts.);
//   - no retry queue takes the copy: it is missing or full, the broker does not confirm, or the
//     headers of the message leave no room for more. One line a minute says so in the log.
//
// # Where dead-lettered messages go
//
// New requires a choice. With Options.Queues the Guard publishes the message to the queue QUEUE.dead,
// with the reason, the error and the number of attempts, and acks only after the confirm.
// With bridgectl dead list, show and replay, an operator sees the messages and sends them to the
// receiver's queue again, with their attempts begun anew. What the broker itself moves there, at the
// delivery limit (ReceiverOptions.DeliveryLimit), is shown and replayed too.
//
// With Options.DeadLetter the Guard calls a function, and acks only when
// that has stored the message. [DeadQueue] makes one that publishes to any queue, with the reason,
// and waits for the confirm.
//
// With Options.DeadLetterExchange the Guard rejects the message and the broker moves it. The Guard
// cannot see whether the queue has a dead-letter exchange; a message that is rejected on a queue
// without one is lost. Nor does the broker wait for a confirm by default: it removes the message
// from the queue at once, and the message is lost if the dead queue is missing, full, or without a
// leader just then, or if a node stops. Only a quorum queue does better. Declare it with all of
//
//	x-dead-letter-exchange, and x-dead-letter-routing-key or a binding that leads to a durable queue
//	x-dead-letter-strategy  at-least-once
//	x-overflow              reject-publish, without which the broker ignores the strategy
//
// bridgectl doctor --receiver QUEUE looks at them.
//
// With Options.HandBack the Guard hands the message back after a pause, again and again. The
// queue's delivery limit may end that; see the next section.
//
// # What the queue must be like
//
// A quorum queue counts how often a message was requeued; before RabbitMQ 4.3 a nack counts
// too. Beyond its delivery limit it dead-letters the message, or drops it if the queue has no
// dead-letter exchange. Unless set, the limit is 20 from RabbitMQ 4.0 on, and before that there
// is none. So give the queue a dead-letter exchange and a positive delivery limit, as DeclareReceiver
// does. The limit stops a message whose handling kills the process each time, which no code in the
// process can.
//
// Each end of a channel counts, too, for all messages that it had not acked, up to
// ConsumerOptions.Prefetch. So the messages that were delivered beside one that kills the process
// come closer to the limit with it, and so do all that a receiver holds while it starts and dies for
// another reason. A message in a retry queue begins anew. ReceiverOptions.DeliveryLimit is 100 by
// default: enough for a hundred deployments, lost connections or crashes while the same message
// waits, and before RabbitMQ 4.3 for more than eight hours without the database at the default
// Options.Hold. If messages must outlast more, set up to 1,000,000. At the limit no message is lost:
// the broker moves it to the dead queue at least once, bridgectl dead list shows it with the reason
// delivery_limit, and dead replay sends it back.
//
// Declare queues before they are used, not with the first message. RabbitMQ writes the place of a
// quorum queue's log to the disk some moments after the declaration. If the broker is killed before,
// it makes a new, empty log: the queue's messages are gone although they were confirmed, and the queue
// gets no leader (measured on a single node of 3.10.8, in two of three kills within seconds of the
// declaration; rabbitmq-server, issue 15725).
package idempotency
