// Package watermillbridge joins Watermill (github.com/ThreeDotsLabs/watermill) to the bridge. Its
// message.Publisher sends in an SQL transaction. Each handler of its message.Subscriber works in a
// transaction too. It is a module of its own. Until the first release, go.mod needs two replace
// lines, for this module and for github.com/twoqueue/twoqueue, with a checkout (README of the root
// module).
//
//	publisher := watermillbridge.NewPublisher(nil)
//	err := s.InTx(ctx, db, nil, func(tx *sender.Tx) error { // s is a *sender.Sender
//		if _, err := tx.ExecContext(ctx, `INSERT INTO orders …`); err != nil {
//			return err
//		}
//		placed := message.NewMessageWithContext(watermillbridge.WithTx(ctx, tx), watermill.NewUUID(), payload)
//		return publisher.Publish("orders", placed) // goes out if the transaction commits
//	})
//
// A handler of a router changes its database and publishes a message, both once per message:
//
//	subscriber, err := watermillbridge.NewSubscriber(broker, db, inbox, "billing",
//		&watermillbridge.SubscriberOptions{Sender: s})
//	router, err := message.NewRouter(message.RouterConfig{}, nil)
//	router.AddMiddleware(watermillbridge.Reasons)
//	router.AddHandler("bill", "orders", subscriber, "invoices", publisher,
//		func(msg *message.Message) ([]*message.Message, error) {
//			ctx := msg.Context()
//			tx := watermillbridge.TxFromContext(ctx) // a *sql.Tx
//			if _, err := tx.ExecContext(ctx, `INSERT INTO invoices …`); err != nil {
//				return nil, err // rolls back, and the message comes again
//			}
//			return []*message.Message{message.NewMessageWithContext(ctx, watermill.NewUUID(), invoice)}, nil
//		})
//	err = router.Run(ctx)
//
// The example (example_test.go) is the whole program. A verifier must run, and allow the targets
// (package verifier).
//
// # The publisher
//
// Watermill's Publish has no context, so a Publisher sends each message in the transaction of the
// message's own context: WithTx adds a transaction of sender.InTx or a similar function, WithSendTx
// a transaction that you commit yourself. Make the messages of a handler with the context of the
// handled message. message.Message.Copy does not copy the context.
//
// A topic is the name of a queue, unless PublisherOptions.Target returns another target. The
// receiver declares the queue. Until then the verifier tries again, and at last moves the message
// to the dead queue.
//
// # The subscriber
//
// For each message the Subscriber begins a transaction and claims the message's ID in the inbox,
// with the Deduplicator of package idempotency. If the ID was claimed before, the Subscriber acks
// the message at the broker and does not deliver it. Otherwise it delivers the message, with the
// open transaction in its context (TxFromContext). Then
//
//	Ack                    the messages that were published with the message's context are recorded
//	                       and staged, the transaction commits, and then the broker gets its ack
//	the commit fails       the transaction rolls back, and the message comes again in spite of its Ack;
//	                       if the commit has no answer, the next claim finds out whether it happened
//	Nack                   the transaction rolls back, and the message comes again
//	neither, until the     the same; a later Ack returns false. That is no failed attempt, however
//	context ends           often it happens: no such message is moved to the dead queue
//	the process dies       the database rolls back, and the message comes again; if the commit was
//	                       done, it is acked then and not delivered
//
// So the work in the transaction, and the messages sent in it, have effect exactly once. The
// handler may run more than once, and an effect outside of the transaction may be repeated. The
// handler must have done all its work before the Ack. Watermill's router acks after the handler has
// returned and its messages are published.
//
// The context of a message ends with the option Hold of SubscriberOptions.Deduplicator. A message
// that comes again is another *message.Message with another transaction. A Nack is a failed attempt
// (package idempotency): by default, after 13 of them the message is moved to the dead queue. With
// one worker, the default, a message that fails holds up the messages behind it; with several
// workers it waits in a retry queue. The middleware Reasons, or the function Nack, gives the
// reason, so that a deadlock does not count and a backoff.Permanent ends the attempts.
//
// An Ack commits all that the handler did, also if a middleware hid its error. So do not use
// Watermill's middlewares that hide an error or call the handler again in the same transaction:
// Retry, Duplicator, PoisonQueue, IgnoreErrors. The statements and messages of the failed call
// would be committed with the rest, and on PostgreSQL the transaction accepts no statement after a
// failed one. Let the router nack the message: the Deduplicator tries again, and has a dead queue.
// InstantAck commits before the handler works.
//
// On MySQL and MariaDB a deadlock ends the transaction, and so does a statement such as CREATE
// TABLE. If the handler acks nevertheless, its messages do not go out, and the message comes again.
// But statements after the end are committed, and after a CREATE TABLE the statements before it and
// the claim too: then the message is acked as handled, without its handler's messages.
//
// Each topic has one queue, which all subscriptions to the topic share, so there are no consumer
// groups. For a group, bind a queue of its own to an exchange (PublisherOptions.Target), and return
// that queue's name from SubscriberOptions.Queue. The order is kept with PublisherOptions.OrderKey,
// one worker, and ReceiverOptions.SingleActiveConsumer.
//
// # How messages are mapped
//
// The payload is the body. Each metadata entry is a header with a string. The UUID, which may be
// any text, is the header _watermill_message_uuid, as in watermill-amqp: programs with either
// package understand the other's messages. Nothing else is sent.
//
// The message-id is an ID that the sender makes in each Publish, and the receiver claims that ID.
// So a UUID that is published twice is handled twice, unless SubscriberOptions.Deduplicator.Key
// returns the UUID. Package watermill-amqp sends no message-id. Then the receiver claims the UUID.
//
// Publish refuses metadata that would not arrive, with bridge.ErrInvalidMessage: keys that begin
// with x-bridge-, keys that brokers add, such as x-death, and more than bridge.Message allows. If a
// message from another program lacks the header of the UUID, its message-id is the UUID. Its
// metadata are the headers with strings. DeliveryFromContext returns the whole delivery.
package watermillbridge
