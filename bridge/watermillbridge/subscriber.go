package watermillbridge

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
)

// SubscriberOptions are the options of NewSubscriber. Nil and the zero value of each field mean their
// defaults.
type SubscriberOptions struct {
	// Queue returns the queue of a topic. Default: the topic is the queue's name.
	Queue func(topic string) string

	// Sender sends the messages that are published with the context of a message of the Subscriber, in
	// its transaction. Its ledger must be in the Subscriber's database. Default: such a Publish fails.
	Sender *sender.Sender

	// Receiver are the options of the queues that SubscribeInitialize and Subscribe declare. Without
	// RetryDelays, retry queues are declared only if Consumer has several Workers and no Key:
	// otherwise a Consumer does not use them.
	Receiver idempotency.ReceiverOptions

	// Deduplicator are the options of each queue's Deduplicator. Its Queues must be nil. Without Key
	// the key is the message ID, and in a message without one the UUID of watermill-amqp. If one of
	// DeadLetterExchange, DeadLetter and HandBack is set, no queue is declared: the topic's queue must
	// exist. Default: queues are declared (idempotency.DeclareReceiver), and failed messages wait in
	// them.
	Deduplicator idempotency.Options

	// Consumer are the options of each queue's Consumer. Workers is how many messages of a
	// subscription are handled at once, each in a transaction of its own. The default is 1, as
	// Watermill's contract says: the next message comes when the last one is acked. A program that
	// reads one message after the other should keep it: more messages would wait with open
	// transactions.
	Consumer idempotency.ConsumerOptions
}

// A Subscriber is a message.Subscriber that lets each message be handled once, in a transaction that
// also holds the claim of the message's ID. The package comment says how. It is safe for concurrent use.
type Subscriber struct {
	broker   *bridge.Broker
	db       *sql.DB
	inbox    driver.Claims
	consumer string
	opts     SubscriberOptions
	declares bool

	closing context.Context
	close   context.CancelFunc
	mu      sync.Mutex // guards failed, and keeps running.Add from following close
	running sync.WaitGroup
	failed  error // the first error that ended a subscription
}

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// NewSubscriber returns a Subscriber that consumes through broker and works in db, which has the inbox's
// tables. Both stay the caller's, who closes them after the Subscriber. consumer is the name of the
// service: all its processes use the same name, and no other service on this database does. The inbox
// keeps the keys of each queue under the name "consumer/queue", which has at most 255 bytes. consumer
// contains no slash, so that the name is of one queue only; a queue may contain some. opts may be nil.
// NewSubscriber connects to nothing. Its error names the argument or option that is wrong.
func NewSubscriber(broker *bridge.Broker, db *sql.DB, inbox driver.Claims, consumer string, opts *SubscriberOptions) (*Subscriber, error) {
	s := &Subscriber{broker: broker, db: db, inbox: inbox, consumer: consumer}
	if opts != nil {
		s.opts = *opts
	}
	dedup, consume := &s.opts.Deduplicator, &s.opts.Consumer
	if s.opts.Queue == nil {
		s.opts.Queue = func(topic string) string { return topic }
	}
	if consume.Workers == 0 {
		consume.Workers = 1
	}
	if s.opts.Receiver.RetryDelays == nil && (consume.Workers == 1 || consume.Key != nil) {
		s.opts.Receiver.RetryDelays = []time.Duration{}
	}
	s.declares = !dedup.DeadLetterExchange && dedup.DeadLetter == nil && !dedup.HandBack
	checked := *dedup
	checked.HandBack = checked.HandBack || s.declares
	var err error
	switch {
	case db == nil:
		err = errors.New("db is nil")
	case inbox == nil:
		err = errors.New("inbox is nil")
	case strings.Contains(consumer, "/"):
		err = errors.New("consumer name contains a slash, which separates it from the queue")
	case dedup.Queues != nil:
		err = errors.New("SubscriberOptions.Deduplicator.Queues must be nil: each topic has queues of its own")
	default:
		if _, err = idempotency.New(inbox, consumer, &checked); err == nil {
			_, err = idempotency.NewConsumer(broker, "any", func(context.Context, amqp.Delivery) error { return nil }, consume)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("new subscriber: %w", err)
	}
	s.closing, s.close = context.WithCancel(context.Background())
	return s, nil
}

// ErrClosed: the Subscriber was closed.
var ErrClosed = errors.New("the subscriber is closed")

// begin counts a call or a subscription, for which Close waits.
func (s *Subscriber) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Err() != nil {
		return ErrClosed
	}
	s.running.Add(1)
	return nil
}

// SubscribeInitialize declares the queues of a topic, so that messages may be sent there before
// Subscribe. Without a connection to the broker the error is bridge.ErrUnavailable.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	if err := s.begin(); err != nil {
		return fmt.Errorf("initialize topic %q: %w", topic, err)
	}
	defer s.running.Done()
	if _, err := s.dedup(s.closing, s.opts.Queue(topic)); err != nil {
		return fmt.Errorf("initialize topic %q: %w", topic, err)
	}
	return nil
}

// dedup declares a queue, and returns the Deduplicator of its messages.
func (s *Subscriber) dedup(ctx context.Context, queue string) (*idempotency.Deduplicator, error) {
	opts := s.opts.Deduplicator
	if s.declares {
		queues, err := idempotency.DeclareReceiver(ctx, s.broker, queue, &s.opts.Receiver)
		if err != nil {
			return nil, err
		}
		opts.Queues = queues
	}
	if opts.Key == nil {
		opts.Key = keyOf
	}
	return idempotency.New(s.inbox, s.consumer+"/"+queue, &opts)
}

// Subscribe declares the queues of a topic, and returns its messages until ctx ends or Close is
// called. Then the subscription drains, and closes the channel. The context of a message has the
// values of ctx, and ends with the Ack or Nack. Without a connection to the broker the error is
// bridge.ErrUnavailable. If the connection is lost later, the Subscriber connects again. Subscriptions
// to the same topic, in one process or several, share its messages.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if err := s.begin(); err != nil {
		return nil, fmt.Errorf("subscribe to topic %q: %w", topic, err)
	}
	stopping, stop := context.WithCancel(ctx)
	unlink := context.AfterFunc(s.closing, stop)
	queue := s.opts.Queue(topic)
	sub := &subscription{db: s.db, inbox: s.inbox, sender: s.opts.Sender, stopping: stopping, out: make(chan *message.Message)}
	consumer, err := idempotency.NewConsumer(s.broker, queue, sub.handle, &s.opts.Consumer)
	if err == nil {
		sub.dedup, err = s.dedup(stopping, queue)
	}
	if err != nil {
		unlink()
		stop()
		s.running.Done()
		return nil, fmt.Errorf("subscribe to topic %q: %w", topic, err)
	}
	go func() {
		defer s.running.Done()
		err := consumer.Run(stopping)
		unlink()
		stop()
		sub.end()
		if err != nil {
			s.fail(fmt.Errorf("topic %q: %w", topic, err))
		}
	}()
	return sub.out, nil
}

func (s *Subscriber) fail(err error) {
	log := s.opts.Consumer.Logger
	if log == nil {
		log = slog.Default()
	}
	log.Error("subscription ended", "error", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		s.failed = err
	}
}

// Close ends all subscriptions and drains: it delivers no further message, and delivered messages have
// ConsumerOptions.Drain, 20 seconds unless set, to be acked or nacked. Then their contexts end, their
// transactions roll back, and they come again. The CloseTimeout of a router must be longer. Close returns
// when all channels are closed. Its error is the first with which a subscription ended:
// idempotency.ErrNotDrained or bridge.ErrCredentials.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	s.close()
	s.mu.Unlock()
	s.running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// A subscription delivers the messages of one queue.
type subscription struct {
	db       *sql.DB
	inbox    driver.Claims
	dedup    *idempotency.Deduplicator
	sender   *sender.Sender // nil: the transactions cannot send
	stopping context.Context

	offering sync.RWMutex // held for reading while a message is offered
	over     bool
	out      chan *message.Message
}

// end closes the channel. stopping has ended, so that no message is offered for long.
func (sub *subscription) end() {
	sub.offering.Lock()
	defer sub.offering.Unlock()
	sub.over = true
	close(sub.out)
}

// errStopping does not count as a failed attempt.
var errStopping = idempotency.RetryLater(errors.New("the subscription ends"), 0)

// offer returns nil when the reader has taken msg.
func (sub *subscription) offer(ctx context.Context, msg *message.Message) error {
	sub.offering.RLock()
	defer sub.offering.RUnlock()
	if sub.over || sub.stopping.Err() != nil {
		return errStopping
	}
	select {
	case sub.out <- msg:
		return nil
	case <-sub.stopping.Done():
		return errStopping
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (sub *subscription) handle(ctx context.Context, d amqp.Delivery) error {
	return sub.dedup.Handle(ctx, sub.db, d, func(ctx context.Context, tx *sql.Tx) error { return sub.attempt(ctx, tx, d) })
}

// attempt returns nil when the message was acked: then the Deduplicator commits, and acks it at the
// broker. After an error the Deduplicator rolls back, and the message comes again, as another attempt.
func (sub *subscription) attempt(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
	a := &attempt{tx: tx, delivery: d}
	a.delivery.Acknowledger = nil
	var collects Tx = noSender{}
	var messages *sender.TxMessages
	if sub.sender != nil {
		messages = sub.sender.TxMessages(ctx, bridge.SQL(tx))
		defer messages.End()
		collects = messages
	}
	handling, end := context.WithCancel(context.WithValue(WithTx(ctx, collects), attemptKey{}, a))
	defer end()
	msg := received(d)
	msg.SetContext(handling)
	if err := sub.offer(ctx, msg); err != nil {
		return err
	}
	select {
	case <-msg.Acked():
	case <-msg.Nacked():
		return a.nacked()
	case <-ctx.Done():
		msg.Nack() // a later Ack returns false
		return context.Cause(ctx)
	}
	end()
	if messages == nil {
		return nil
	}
	// Before Confirm records, because outside of a transaction a Record commits at once. The
	// Deduplicator leaves the fence again before its COMMIT.
	if err := sub.inbox.Leave(ctx, bridge.SQL(tx)); err != nil {
		return err
	}
	if err := sub.inbox.Enter(ctx, bridge.SQL(tx)); err != nil {
		return err
	}
	return messages.Confirm(ctx) // rule 2 of package bridge
}
