// Package versions is for receivers whose messages carry versions of entities, or growing keys.
// Each strategy keeps one row for each entity or source, and no key per message: nothing is purged,
// and no duplicate is too old to be recognized.
//
//	prices, err := versions.NewLatest(inbox, "prices", versionOf, &versions.Options{Queues: queues})
//	consumer, err := idempotency.NewConsumer(broker, "prices", func(ctx context.Context, d amqp.Delivery) error {
//		return prices.Handle(ctx, db, d, func(ctx context.Context, tx *sql.Tx) error {
//			_, err := tx.ExecContext(ctx, `UPDATE prices …`, d.Body)
//			return err
//		})
//	}, nil)
//	err = consumer.Run(ctx)
//
// Inbox, queues and Consumer are as in package idempotency. Its comment explains deliveries, retry
// queues, dead letters, and the rules for failed attempts.
//
//   - [Latest] handles an event only if its version is higher than all before. Each event must
//     carry the whole state of its entity: versions that were overtaken are never handled.
//   - [Ordered] handles version n only after n-1, and keeps early events in the inbox. A missing
//     version stops only its own entity. [Ordered.Watch] reports it, [Ordered.Skip] goes on without
//     it.
//   - [HighWater] handles a message only if its key is above the mark. It treats a late message as
//     a duplicate, which loses it: read its comment first.
//
// One version that is far too high makes an entity of Latest, or a source of HighWater, ignore all
// later messages until a Reset. Operators use bridgectl gaps list, gaps skip and marks reset.
package versions
