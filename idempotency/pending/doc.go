// Package pending is for receivers whose work is not one transaction: effects outside of the
// database that must not be repeated, and work that takes long.
//
//	effects, err := pending.New(inbox, "mailer", &pending.Options{Queues: queues})
//	go effects.Resume(ctx, db, send) // messages that an operator retries
//	consumer, err := idempotency.NewConsumer(broker, "emails", func(ctx context.Context, d amqp.Delivery) error {
//		return effects.AtMostOnce(ctx, db, d, send) // send is an Effect
//	}, &idempotency.ConsumerOptions{Drain: 65 * time.Second}) // longer than Options.EffectTimeout
//	err = consumer.Run(ctx)
//
// Inbox, queues and Consumer are as in package idempotency. Its comment explains deliveries, retry
// queues, dead letters, keys, and the rules for failed attempts.
//
// # Effects outside of the database
//
// No protocol makes an effect outside of the database happen exactly once.
// idempotency.Deduplicator.Handle may repeat it. [Effects.AtMostOnce] never repeats it: its row
// says 'started' before the effect begins, and a receiver that finds the row later does not begin
// again. Then the effect is in doubt, and an operator, or Options.FindOut, must find out whether it
// happened. So the inbox keeps the row's time, and of an effect that is in doubt or failed also the
// error and the whole message. The row's states, and the remedy for each:
//
//	Started   the effect may be under way                 wait
//	Doubtful  it may have happened                        check outside; MarkDone or Retry
//	Ready     it did not happen, and shall                Resume does it
//	Failed    it did not happen, in Options.Attempts      fix the cause; Retry or MarkDone
//
// If an effect certainly did not happen ([NotDone]), it is not in doubt, once the inbox has
// recorded it. If the process dies before that commit, the row still says 'started', and becomes
// doubtful.
//
// # Work that takes long
//
// [Worker.Accept] stores the message and acks it, so the queue empties as fast as the database
// stores. [Worker.Work] handles it later, under a lease, in one transaction with the deletion of its
// row. A message that fails for good stays in the inbox, Failed, with its error.
//
// # Operators
//
// Alert on Doubtful and Failed messages (Count of [Effects] or a [Worker], or package
// idempotency/metrics). List, MarkDone and Retry are for your own operations page; bridgectl
// pending list, done and retry do the same for any receiver. Run Resume, or Work, in some process:
// otherwise Ready messages are not handled.
package pending
