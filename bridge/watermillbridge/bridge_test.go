package watermillbridge_test

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/bridge/watermillbridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// publish commits messages to a topic.
func (w *world) publish(t *testing.T, topic string, messages ...*message.Message) {
	t.Helper()
	if err := (inTransactions{watermillbridge.NewPublisher(nil), w}).Publish(topic, messages...); err != nil {
		t.Fatal(err)
	}
}

// subscribe declares the queue of a topic, and returns its messages until the end of the test.
func (w *world) subscribe(t *testing.T, topic string, opts watermillbridge.SubscriberOptions) (<-chan *message.Message, *watermillbridge.Subscriber) {
	t.Helper()
	sub := w.subscriber(opts)
	messages, err := sub.Subscribe(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sub.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return messages, sub
}

// bill stores an invoice in the transaction of msg.
func bill(t *testing.T, msg *message.Message, body string) {
	t.Helper()
	if _, err := watermillbridge.TxFromContext(msg.Context()).ExecContext(msg.Context(), `INSERT INTO invoices VALUES ($1)`, body); err != nil {
		t.Error(err)
	}
}

// invoices counts committed invoices.
func (w *world) invoices(t *testing.T, body string) (n int) {
	t.Helper()
	if err := w.DB.QueryRowContext(context.Background(), `SELECT count(*) FROM invoices WHERE body = $1`, body).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func (w *world) empty(queue string) {
	w.Eventually(queue+" is empty", func() bool { return w.Depth(queue) == 0 })
}

func text(body string) *message.Message { return message.NewMessage(watermill.NewUUID(), []byte(body)) }

func TestASubscriberHandlesOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	t.Run("an Ack commits, and a copy is not delivered", func(t *testing.T) {
		messages, _ := w.subscribe(t, "acked", watermillbridge.SubscriberOptions{})
		w.publish(t, "acked", text("acked"))
		msg := servertest.Next(t, "the message", messages)
		bill(t, msg, "acked")
		if n := w.invoices(t, "acked"); n != 0 {
			t.Error("committed before the Ack")
		}
		d, ok := watermillbridge.DeliveryFromContext(msg.Context())
		if !ok || d.MessageId == "" || d.Ack(false) == nil {
			t.Errorf("delivery %v, %q; it must not be acked by hand", ok, d.MessageId)
		}
		msg.Ack()
		w.Eventually("committed", func() bool { return w.invoices(t, "acked") == 1 })
		servertest.Next(t, "the context ends", msg.Context().Done())
		again := amqp.Publishing{MessageId: d.MessageId, Headers: d.Headers, Body: d.Body}
		if err := w.Channel.PublishWithContext(t.Context(), "", "acked", true, false, again); err != nil {
			t.Fatal(err)
		}
		w.publish(t, "acked", text("next"))
		if next := servertest.Next(t, "the next message", messages); string(next.Payload) != "next" || !next.Ack() {
			t.Errorf("the copy of a message was delivered: %q", next.Payload)
		}
		w.empty("acked")
	})

	t.Run("after a Nack, and after a commit that fails, it comes again", func(t *testing.T) {
		messages, _ := w.subscribe(t, "again", watermillbridge.SubscriberOptions{})
		if _, err := w.DB.ExecContext(t.Context(), `INSERT INTO invoices VALUES ('taken')`); err != nil {
			t.Fatal(err)
		}
		w.publish(t, "again", text("again"))
		for number, attempt := range []struct {
			body string
			end  func(*message.Message) bool
		}{
			{"nacked", (*message.Message).Nack},
			{"taken", (*message.Message).Ack}, // the constraint is checked by the COMMIT
			{"again", (*message.Message).Ack},
		} {
			msg := servertest.Next(t, "the message", messages)
			if n, _ := idempotency.Attempt(msg.Context()); n != number+1 {
				t.Errorf("attempt %d, must be %d", n, number+1)
			}
			bill(t, msg, attempt.body)
			attempt.end(msg)
		}
		w.Eventually("committed", func() bool { return w.invoices(t, "again") == 1 })
		if n := w.invoices(t, "nacked") + w.invoices(t, "taken"); n != 1 {
			t.Errorf("%d invoices of failed attempts", n-1)
		}
		w.empty("again")
	})

	t.Run("messages published with its context go out if it commits", func(t *testing.T) {
		messages, _ := w.subscribe(t, "asked", watermillbridge.SubscriberOptions{Sender: w.sender})
		answers, _ := w.subscribe(t, "answers", watermillbridge.SubscriberOptions{})
		w.publish(t, "asked", text("asked"))
		publisher := watermillbridge.NewPublisher(nil)
		var kept context.Context
		for _, attempt := range []struct {
			answer string
			end    func(*message.Message) bool
		}{{"nacked", (*message.Message).Nack}, {"answered", (*message.Message).Ack}} {
			msg := servertest.Next(t, "the message", messages)
			kept = msg.Context()
			if err := publisher.Publish("answers", message.NewMessageWithContext(kept, watermill.NewUUID(), []byte(attempt.answer))); err != nil {
				t.Fatal(err)
			}
			attempt.end(msg)
		}
		if answer := servertest.Next(t, "the answer", answers); string(answer.Payload) != "answered" || !answer.Ack() {
			t.Errorf("answer %q", answer.Payload)
		}
		w.empty("asked")
		if err := publisher.Publish("answers", message.NewMessageWithContext(kept, "late", nil)); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("published after the Ack: %v", err)
		}
		w.publish(t, "answers", text("last"))
		if last := servertest.Next(t, "the last message", answers); string(last.Payload) != "last" || !last.Ack() {
			t.Errorf("the answer of an attempt that was nacked has come: %q", last.Payload)
		}
	})

	t.Run("a message that cannot be sent rolls it back", func(t *testing.T) {
		messages, _ := w.subscribe(t, "mute", watermillbridge.SubscriberOptions{Sender: w.sender})
		for _, key := range []string{strings.Repeat("x", 300), "x-death"} { // refused by the sender and by the Publisher
			w.publish(t, "mute", text("mute"))
			msg := servertest.Next(t, "the message", messages)
			bill(t, msg, "mute")
			refused := message.NewMessageWithContext(msg.Context(), "", nil)
			refused.Metadata.Set(key, "a name that is too long or reserved")
			if err := watermillbridge.NewPublisher(nil).Publish("answers", refused); !errors.Is(err, bridge.ErrInvalidMessage) {
				t.Errorf("error %v", err)
			}
			msg.Ack() // all the same
			servertest.Next(t, "the message again", messages).Ack()
			w.empty("mute")
		}
		if n := w.invoices(t, "mute"); n != 0 {
			t.Errorf("%d invoices without their message", n)
		}
	})

	t.Run("without a message ID, as from watermill-amqp, the UUID is the key", func(t *testing.T) {
		messages, _ := w.subscribe(t, "plain", watermillbridge.SubscriberOptions{})
		for _, id := range []string{"17", "17", "18"} {
			p := amqp.Publishing{Headers: amqp.Table{watermillbridge.HeaderUUID: id}}
			if err := w.Channel.PublishWithContext(t.Context(), "", "plain", true, false, p); err != nil {
				t.Fatal(err)
			}
		}
		for _, want := range []string{"17", "18"} {
			if msg := servertest.Next(t, "message "+want, messages); msg.UUID != want || !msg.Ack() {
				t.Errorf("UUID %q, must be %q", msg.UUID, want)
			}
		}
		w.empty("plain")
	})

	t.Run("a changed payload does not come again", func(t *testing.T) {
		messages, _ := w.subscribe(t, "changed", watermillbridge.SubscriberOptions{})
		w.publish(t, "changed", text("changed"))
		msg := servertest.Next(t, "the message", messages)
		copy(msg.Payload, "SECRET!")
		msg.Nack()
		if msg := servertest.Next(t, "the message again", messages); string(msg.Payload) != "changed" || !msg.Ack() {
			t.Errorf("payload %q", msg.Payload)
		}
	})

	t.Run("the reason of a Nack decides its outcome", func(t *testing.T) {
		messages, _ := w.subscribe(t, "reasons", watermillbridge.SubscriberOptions{})
		w.publish(t, "reasons", text("reasons"))
		first := servertest.Next(t, "the message", messages)
		if !watermillbridge.Nack(first, idempotency.RetryLater(errors.New("out of paper"), 1)) {
			t.Error("nothing was nacked")
		}
		second := servertest.Next(t, "the message again", messages)
		if n, _ := idempotency.Attempt(second.Context()); n != 1 {
			t.Errorf("attempt %d: the one before has counted", n)
		}
		handle := watermillbridge.Reasons(func(*message.Message) ([]*message.Message, error) {
			return nil, backoff.Permanent(errors.New("no such customer"))
		})
		if _, err := handle(second); err == nil {
			t.Error("the middleware hides the error")
		}
		second.Nack()
		w.WaitDepth("reasons.dead", 1)
		w.empty("reasons")
	})

	t.Run("Close lets the handler finish", func(t *testing.T) {
		messages, sub := w.subscribe(t, "closing", watermillbridge.SubscriberOptions{Consumer: idempotency.ConsumerOptions{Drain: servertest.Patience}})
		w.publish(t, "closing", text("closing"))
		msg := servertest.Next(t, "the message", messages)
		closed := make(chan error, 1)
		go func() { closed <- sub.Close() }()
		w.Eventually("closing", func() bool {
			_, err := sub.Subscribe(t.Context(), "closing")
			return errors.Is(err, watermillbridge.ErrClosed)
		})
		bill(t, msg, "closing")
		if len(closed) != 0 {
			t.Error("Close does not wait for the handler")
		}
		msg.Ack()
		if err := servertest.Next(t, "Close returns", closed); err != nil {
			t.Error(err)
		}
		if _, open := <-messages; open || w.invoices(t, "closing") != 1 {
			t.Errorf("channel open: %t, invoices %d", open, w.invoices(t, "closing"))
		}
		w.empty("closing")
	})

	t.Run("after the drain it comes again, and an Ack is refused", func(t *testing.T) {
		messages, sub := w.subscribe(t, "late", watermillbridge.SubscriberOptions{Consumer: idempotency.ConsumerOptions{Drain: 1}})
		w.publish(t, "late", text("late"))
		msg := servertest.Next(t, "the message", messages)
		bill(t, msg, "late")
		if err := sub.Close(); err != nil {
			t.Error(err)
		}
		servertest.Next(t, "the context ends", msg.Context().Done())
		if msg.Ack() {
			t.Error("an Ack after the end is taken")
		}
		messages, _ = w.subscribe(t, "late", watermillbridge.SubscriberOptions{})
		servertest.Next(t, "the message again", messages).Ack()
		w.empty("late")
		if n := w.invoices(t, "late"); n != 0 {
			t.Errorf("%d invoices of the attempt that was cut short", n)
		}
	})

	t.Run("two topics with the same message", func(t *testing.T) {
		for _, topic := range []string{"one", "two"} {
			messages, _ := w.subscribe(t, topic, watermillbridge.SubscriberOptions{})
			if err := w.Channel.PublishWithContext(t.Context(), "", topic, true, false, amqp.Publishing{MessageId: "the same"}); err != nil {
				t.Fatal(err)
			}
			if msg := servertest.Next(t, "the message", messages); msg.UUID != "the same" || !msg.Ack() {
				t.Errorf("UUID %q", msg.UUID)
			}
			w.empty(topic)
		}
	})

	t.Run("a router", func(t *testing.T) {
		sub := w.subscriber(watermillbridge.SubscriberOptions{Sender: w.sender})
		answers, _ := w.subscribe(t, "routed", watermillbridge.SubscriberOptions{})
		router, err := message.NewRouter(message.RouterConfig{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		router.AddMiddleware(watermillbridge.Reasons)
		failed := false
		router.AddHandler("bill", "orders", sub, "routed", watermillbridge.NewPublisher(nil), func(msg *message.Message) ([]*message.Message, error) {
			bill(t, msg, string(msg.Payload))
			if !failed {
				failed = true
				return nil, errors.New("out of paper")
			}
			return []*message.Message{message.NewMessageWithContext(msg.Context(), msg.UUID, msg.Payload)}, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- router.Run(ctx) }()
		servertest.Next(t, "the router runs", router.Running())
		order := text("two apples")
		w.publish(t, "orders", order)
		if answer := servertest.Next(t, "the answer", answers); answer.UUID != order.UUID || !answer.Ack() {
			t.Errorf("answer %q of %q", answer.UUID, order.UUID)
		}
		if n := w.invoices(t, "two apples"); n != 1 {
			t.Errorf("%d invoices", n)
		}
		w.empty("orders")
		cancel()
		if err := errors.Join(servertest.Next(t, "the router ends", ended), sub.Close()); err != nil {
			t.Error(err)
		}
	})
}

// InnoDB ends a transaction at a deadlock. Later statements are committed one by one, and so would be
// the record of a message that the handler has published.
func TestATransactionThatTheServerHasEndedSendsNothing(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.MariaDB)
	if err := migrate.Inbox(t.Context(), s.DB, migrate.MySQL); err != nil {
		t.Fatal(err)
	}
	inbox, err := mysql.OpenInbox(t.Context(), s.DB)
	if err != nil {
		t.Fatal(err)
	}
	deadlock := servertest.NewDeadlock(t, s.DB)
	log := stage.Logger(t)
	sub, err := watermillbridge.NewSubscriber(s.Broker, s.DB, inbox, "billing", &watermillbridge.SubscriberOptions{
		Sender: s.Sender, Receiver: idempotency.ReceiverOptions{Logger: log}, Deduplicator: idempotency.Options{Logger: log}, Consumer: idempotency.ConsumerOptions{Logger: log},
	})
	if err != nil {
		t.Fatal(err)
	}
	messages, err := sub.Subscribe(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if err := s.Channel.PublishWithContext(t.Context(), "", "orders", true, false, amqp.Publishing{MessageId: "17"}); err != nil {
		t.Fatal(err)
	}
	publish := func(msg *message.Message) {
		if err := watermillbridge.NewPublisher(nil).Publish("invoices", message.NewMessageWithContext(msg.Context(), "", nil)); err != nil {
			t.Fatal(err)
		}
		msg.Ack()
	}
	msg := servertest.Next(t, "the message", messages)
	_ = deadlock(servertest.InTx(msg.Context(), watermillbridge.TxFromContext(msg.Context())))
	publish(msg)
	msg = servertest.Next(t, "the message again", messages)
	if depth, rows := s.Depth("staging"), s.Rows(); depth != 0 || rows != 0 {
		t.Errorf("%d messages are staged and %d IDs recorded", depth, rows)
	}
	publish(msg)
	s.WaitDepth("staging", 1) // before the COMMIT
	s.Eventually("orders is empty, and one ID is recorded", func() bool { return s.Depth("orders") == 0 && s.Rows() == 1 })
}

func TestTheExampleBills(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	invoices, sub := w.subscribe(t, "invoices", watermillbridge.SubscriberOptions{})
	if err := sub.SubscribeInitialize("orders"); err != nil {
		t.Fatal(err)
	}
	w.publish(t, "orders", text("two apples"))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, w.DatabaseURL, w.AMQP) }()
	if invoice := servertest.Next(t, "the invoice", invoices); string(invoice.Payload) != "two apples" || !invoice.Ack() {
		t.Errorf("invoice %q", invoice.Payload)
	}
	w.empty("orders")
	cancel()
	if err := servertest.Next(t, "the program ends", ended); err != nil {
		t.Error(err)
	}
	if n := w.invoices(t, "two apples"); n != 1 {
		t.Errorf("%d invoices", n)
	}
}

func TestAMessageComesAsItWasPublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	messages, _ := w.subscribe(t, "mapped", watermillbridge.SubscriberOptions{})
	edited := watermillbridge.NewPublisher(&watermillbridge.PublisherOptions{
		Target:   func(topic string) bridge.Target { return bridge.Target{RoutingKey: strings.TrimPrefix(topic, "shop.")} },
		OrderKey: func(topic string, msg *message.Message) string { return topic },
		Edit:     func(_ string, m *bridge.Message) { m.Publishing.ContentType = "text/plain" },
	})
	for _, want := range []*message.Message{
		message.NewMessage("", nil),
		message.NewMessage("no UUID at all, ☃ \x00\xff", []byte("\x00\xff")),
		{UUID: watermill.NewULID(), Payload: []byte("x"), Metadata: message.Metadata{"empty": "", "name ☃": "\x00\xff", "traceparent": "00-1", "long": strings.Repeat("y", 2000)}},
	} {
		tx, err := w.DB.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		sent := want.Copy()
		sent.SetContext(watermillbridge.WithSendTx(t.Context(), w.sender, bridge.SQL(tx)))
		if err := errors.Join(edited.Publish("shop.mapped", sent), tx.Commit()); err != nil {
			t.Fatal(err)
		}
		got := servertest.Next(t, "the message", messages)
		if !got.Equals(want) {
			t.Errorf("got %+v, must be %+v", got, want)
		}
		if d, _ := watermillbridge.DeliveryFromContext(got.Context()); d.ContentType != "text/plain" || len(d.Headers) != len(want.Metadata)+1 {
			t.Errorf("content type %q, headers %v", d.ContentType, d.Headers)
		}
		got.Ack()
	}
	// The message of another program, with headers that a retry queue adds.
	foreign := amqp.Publishing{MessageId: "17", Headers: amqp.Table{"a": "b", "n": int32(3), "x-bridge-attempts": int32(1), "x-first-death-queue": "q"}}
	if err := w.Channel.PublishWithContext(t.Context(), "", "mapped", true, false, foreign); err != nil {
		t.Fatal(err)
	}
	msg := servertest.Next(t, "another sender's message", messages)
	if d, _ := watermillbridge.DeliveryFromContext(msg.Context()); msg.UUID != "17" || !maps.Equal(msg.Metadata, message.Metadata{"a": "b"}) || d.Headers["n"] != int32(3) {
		t.Errorf("UUID %q, metadata %v", msg.UUID, msg.Metadata)
	}
	publish := func(ctx context.Context, key string) error {
		m := message.NewMessageWithContext(ctx, "", nil)
		m.Metadata.Set(key, "")
		return watermillbridge.NewPublisher(nil).Publish("mapped", m)
	}
	err := publish(msg.Context(), "a")
	if err == nil || !strings.Contains(err.Error(), "SubscriberOptions.Sender") {
		t.Errorf("without a sender: %v", err)
	}
	msg.Ack()
	if err := publish(t.Context(), "a"); !errors.Is(err, watermillbridge.ErrNoTx) {
		t.Errorf("without a transaction: %v", err)
	}
	unusable := watermillbridge.NewPublisher(&watermillbridge.PublisherOptions{OrderKey: func(topic string, _ *message.Message) string { return topic + "\x00" }})
	err = w.sender.InTx(t.Context(), w.DB, nil, func(tx *sender.Tx) error {
		return unusable.Publish("mapped", message.NewMessageWithContext(watermillbridge.WithTx(t.Context(), tx), "", nil))
	})
	if !errors.Is(err, bridge.ErrInvalidMessage) || !strings.Contains(err.Error(), "OrderKey") {
		t.Errorf("an unusable order key: %v", err)
	}
	for _, key := range []string{"x-bridge-ledger", "x-death", "x-last-death-queue", "CC", watermillbridge.HeaderUUID} {
		err := w.sender.InTx(t.Context(), w.DB, nil, func(tx *sender.Tx) error {
			return publish(watermillbridge.WithTx(t.Context(), tx), key)
		})
		if !errors.Is(err, bridge.ErrInvalidMessage) {
			t.Errorf("metadata %s: %v", key, err)
		}
	}
}

func TestNewSubscriberNamesTheWrongOption(t *testing.T) {
	t.Parallel()
	_, err := watermillbridge.NewSubscriber(nil, nil, nil, "", nil)
	if err == nil || !strings.Contains(err.Error(), "db is nil") {
		t.Errorf("error %v", err)
	}
	w := newWorld(t)
	for want, opts := range map[string]*watermillbridge.SubscriberOptions{
		"consumer name":           nil,
		"ConsumerOptions.Workers": {Consumer: idempotency.ConsumerOptions{Workers: -1}},
		"Deduplicator.Queues":     {Deduplicator: idempotency.Options{Queues: new(idempotency.Queues)}},
		"Retention":               {Deduplicator: idempotency.Options{Retention: 1}},
	} {
		name := "billing"
		if opts == nil {
			name = ""
		}
		if _, err := watermillbridge.NewSubscriber(w.Broker, w.DB, w.inbox, name, opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	// Of "eu/billing/orders" the queue could be "orders" or "billing/orders".
	if _, err := watermillbridge.NewSubscriber(w.Broker, w.DB, w.inbox, "eu/billing", nil); err == nil || !strings.Contains(err.Error(), "slash") {
		t.Errorf("consumer with a slash: %v", err)
	}
}
