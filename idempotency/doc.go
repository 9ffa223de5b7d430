// Package idempotency lets a receiver handle each message once, although the
// broker may deliver it more than once.
//
//	inbox, err := postgres.OpenInbox(ctx, db) // or sqlserver, mysql, sqlite; migrate.Inbox has made its tables
//	guard, err := idempotency.New(inbox, "mailer", &idempotency.Options{DeadLetterExchange: true}) // the queue has one
//	for d := range deliveries { // of Consume, with manual acks
//		err := guard.Handle(ctx, db, d, func(ctx context.Context, tx *sql.Tx) error {
//			_, err := tx.ExecContext(ctx, `INSERT INTO emails …`, d.Body)
//			return err
//		})
//		if err != nil {
//			slog.Error("delivery not finished", "error", err)
//		}
//	}
//
// It needs no sender and no verifier of this module: any message with an ID will do. The
// examples show a receiver from its start to its end, each strategy, and a request with
// its reply.
//
// # Why messages come twice
//
// The bridge delivers every committed message at least once: a verifier that
// dies between the broker's confirm and its own bookkeeping forwards the message
// again, and a receiver that dies between its commit and its ack is given it
// again. All copies carry the same message ID. The ID is the idempotency key.
//
// # Which strategy for which case
//
//	the receiver ...                                    use                    the store keeps
//	changes its own database                            Guard.Handle           a key per message
//	does something outside of it that must not be       Guard.AtMostOnce,      a key per message; a row while
//	done twice: an e-mail, a payment                    with Guard.Resume      it is done or in doubt
//	takes long, or wants failures kept and put back     Guard.Accept and Work  a key per message; the message
//	                                                                           until it is done
//	gets the whole state of an entity in each event     Latest                 a version per entity
//	gets changes of an entity that need their order     Ordered                a version per entity; what is early
//	gets messages of a source in the order of growing   HighWater              a key per source
//	keys, from one queue with one consumer
//
// Where the effect outside has an idempotency key of its own, as many payment
// services offer, Handle is better than AtMostOnce: pass the message ID, and repeat.
// A consumer name belongs to one strategy. The strategies in the first three rows refuse a
// key that tells its age and is too old to judge; see below.
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
// the process dies: that is what [Guard.AtMostOnce] is for.
//
// Handle begins and commits that transaction. Where you do so yourself, by whatever library,
// [Guard.HandleTx] claims in yours, and acks when it has seen the claim committed.
//
// # What becomes of a delivery
//
// Every call of [Guard.Handle], [Guard.AtMostOnce] and [Guard.Accept], and of the Handle
// of [Latest], [Ordered] and [HighWater], ends in one of these outcomes, counted in
// [Stats]:
//
//	handled        committed and acked                          returns nil
//	duplicate      had been handled before; acked               returns nil
//	stale          of Latest: a later version had been; acked   returns nil
//	kept           stored, to be handled later; acked           returns nil
//	doubtful       stored, nobody knows if it was done; acked   returns nil
//	dead-lettered  refused for good, and safe somewhere else    returns nil
//	handed back    requeued; the broker delivers it again       returns an error that is ErrHandedBack
//
// A call whose goroutine ends in the handler (runtime.Goexit) hands the message back too.
// It cannot return the error, and logs it.
//
// If an ack does not reach the broker, the outcome stands and Handle returns an
// error that is [ErrNotAcked]: the message comes again, and is then a duplicate.
// So the plain loop at the top is right: it logs the error and goes on.
//
// A loop like this handles one message at a time, and one that fails keeps the
// others waiting for the length of its retries. A Guard may be used by any
// number of goroutines: start a few such loops on one delivery channel, with a
// prefetch of at least their number. A much larger one lets messages wait in the process
// while the broker's consumer timeout runs: Options.Hold says what is too large.
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
// So a handler which itself loses the connection each time, by a statement larger than the
// server takes or a pause longer than the server waits in a transaction, is taken for a
// database that fails: its message is never dead-lettered by the Guard, and goes round.
// You see it in the warnings of failed attempts that say failed=0, and in Stats.HandedBack,
// which grows while FailedAttempts does not. The queue's delivery limit ends it where the
// broker counts a nack; see below.
//
// Nobody, if the caller's context has ended or the delivery has been held for
// too long: whatever the attempt says then, it is handed back.
//
// A message without a usable ID (empty, longer than 255 bytes, not UTF-8, or
// with a NUL byte) cannot be told from its copies. It is never handled, and dead-
// lettered without an attempt.
//
// # Effects outside of the database
//
// No protocol makes an effect outside of the database happen exactly once. Handle may
// repeat it, AtMostOnce never does: its row says 'started' before the effect begins, and
// whoever finds that row later does not begin again. What is left is to find out, and
// the inbox keeps what that takes: the key, the time, the error, the whole message.
//
//	Started   the effect may be under way                 wait
//	Doubtful  it may have happened                        look outside; MarkDone or Retry
//	Ready     it did not happen, and shall                Resume does it
//	Failed    it did not happen, in Options.Attempts      mend the cause; Retry or MarkDone
//
// [Guard.CountPending] is the metric to alert on, and [Guard.Pending] the list for the
// operator. A message whose effect certainly did not happen ([NotDone]) is not in doubt, once
// the inbox knows: if the process dies before that is committed, or the database does not
// answer until Options.Hold ends, the row still says 'started', and becomes doubtful. Run
// [Guard.Resume] somewhere, or nobody does what is Ready.
//
// # Entities, versions and sources
//
// [Latest], [Ordered] and [HighWater] remember how far they have come: one row for each
// entity or source, not one per message. Nothing is purged.
//
// Latest locks the entity's row, also one that is not there yet, and handles an event
// only if its version is higher. What was overtaken is never handled. Ordered handles
// version n only after n-1, keeps what comes early, and reports by Watch what waits too
// long. A missing version stops its own entity only; Skip goes on without it. HighWater
// handles what is above the mark. A message that comes late is taken for a duplicate
// and lost: read its comment first.
//
// A handler that answers sends its [Reply] with sender.SendTx in its transaction:
// request handled and reply sent are one fact.
//
// # Keys, their age, and the purge
//
// The key is the message ID, unless Options.Key makes it of something else: the number
// of the order, say, when a sender that was restarted sends the same order under a new
// ID. Each consumer name has its own keys.
//
// Keys are kept for Options.Retention. Handle, AtMostOnce and Accept delete older ones as
// they go: after every 200 messages, once the last one is acked, a short transaction reads
// 500 keys. If some are old, a second transaction deletes them. Stats.Purged and
// Stats.PurgePasses tell how it gets on; [Guard.Purge] works off a backlog. The purge
// follows the primary key, in which UUIDv7 and ULID keys are in the order of their age,
// so that it finds the old ones first and skips the others; there is no index for it
// that each claim would have to pay for.
//
// A UUIDv7 or ULID tells when it was made. If that is longer ago than the retention, a
// key that is not in the inbox may have been there: its message is not handled as new,
// but dead-lettered with [ErrTooOld] as the reason. A key is deleted only an hour after
// it has become too old, so that receivers whose clocks differ by less agree.
//
// Any other key tells nothing. It is deleted when its claim is older than the
// retention, and a copy that comes later is handled again, as new. Choose a retention
// beyond which no copy can come, also from a dead queue that somebody puts back, or
// keep such keys for ever (a negative one). They are purged by walking through all of
// them, 500 at a time. Each process makes one step at the first key, and then walks on from
// the key of a message that it has just handled: so the purge comes to all keys although
// processes are restarted, if new keys are spread over all.
//
// # Where dead-lettered messages go
//
// The Guard cannot see whether a queue has a dead-letter exchange, and a message
// that is rejected on a queue without one is lost. So New requires a choice: with
// Options.DeadLetterExchange the Guard rejects the message and the broker moves it; with
// Options.DeadLetter it calls a function of yours and acks only when that one has stored
// the message; with Options.HandBack it hands the message back after a pause, again and
// again, which loses nothing in itself, but see the next section.
//
// # What the queue must be like
//
// A quorum queue counts how often a message was requeued, before RabbitMQ 4.3 also by a
// nack. Beyond its delivery limit (from 4.0 on 20 unless set, before that none unless set)
// it drops the message, or dead-letters it if it has a dead-letter exchange. A long outage of
// the database could reach that limit. Give the queue a dead-letter exchange and
// a large positive delivery limit. The limit also catches what no code in the
// process can: a message whose handling kills the process each time.
//
// Consume with manual acks, on a channel that the client library does not
// recover by itself: after a recovery delivery tags start again, and the ack of
// an old one may ack a message that nobody has handled.
package idempotency
