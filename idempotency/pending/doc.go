// Package pending is for receivers whose work is not one transaction: effects outside of the database
// that must not be repeated, and work that takes long.
//
//	guard, err := pending.New(inbox, "mailer", &pending.Options{Queues: queues})
//	go guard.Resume(ctx, db, send) // what an operator has released
//	consumer, err := idempotency.NewConsumer(broker, "emails", func(ctx context.Context, d amqp.Delivery) error {
//		return guard.AtMostOnce(ctx, db, d, send) // send is an Effect
//	}, &idempotency.ConsumerOptions{Drain: 65 * time.Second}) // longer than Options.EffectTimeout
//	err = consumer.Run(ctx)
//
// Inbox, queues and Consumer are as in package idempotency, whose comment explains deliveries, retry
// queues, dead letters and keys. It also says who is to blame for a failed attempt.
//
// # Effects outside of the database
//
// No protocol makes an effect outside of the database happen exactly once. idempotency.Guard.Handle
// may repeat it. [Guard.AtMostOnce] never does: its row says 'started' before the effect begins, and
// a receiver that finds the row later does not begin again. Somebody must then find out whether the
// effect happened. So the inbox keeps a row with the time, and once the effect is in doubt or failed the error and the
// whole message:
//
//	Started   the effect may be under way                 wait
//	Doubtful  it may have happened                        look outside; MarkDone or Retry
//	Ready     it did not happen, and shall                Resume does it
//	Failed    it did not happen, in Options.Attempts      mend the cause; Retry or MarkDone
//
// An effect that certainly did not happen ([NotDone]) is not in doubt, once the inbox knows. If the
// process dies before that is committed, the row still says 'started', and becomes doubtful.
//
// # Work that takes long
//
// [Guard.Accept] stores the message and acks it, so that the queue empties as fast as the database
// stores. [Guard.Work] handles it later, under a lease, in one transaction with the end of its row. A
// message that fails for good stays, Failed, with its error.
//
// # Operators
//
// Alert on Doubtful and Failed messages ([Guard.Count], or package idempotency/metrics).
// [Guard.List], [Guard.MarkDone] and [Guard.Retry] are for a page of yours; bridgectl pending list,
// done and retry do the same for any receiver. Run Resume, or Work, somewhere: nothing else handles
// the messages that are Ready.
package pending
