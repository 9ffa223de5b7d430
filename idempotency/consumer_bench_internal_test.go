package idempotency

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// BenchmarkAMessage measures a message from its delivery to its ack, without broker and database.
func BenchmarkAMessage(b *testing.B) {
	dedup, err := New(freshInbox{}, "bench", &Options{HandBack: true, Retention: -1})
	if err != nil {
		b.Fatal(err)
	}
	var handled sync.WaitGroup
	begin := func(context.Context) (noTransaction, error) { return noTransaction{}, nil }
	c, err := newConsumer(new(bridge.Broker), "bench", 1, func(ctx context.Context, ds []amqp.Delivery) error {
		defer handled.Done()
		return HandleIn(ctx, dedup, begin, ds[0], func(context.Context, noTransaction) error { return nil })
	}, &ConsumerOptions{Workers: 4, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	s := &consumerSession{open: newOpenDeliveries(func(uint64, bool) error { return nil }, 4, 16)}
	s.Stopping, s.end = context.WithCancelCause(b.Context())
	handling, cancel := engine.Outliving(s.Stopping, time.Minute)
	defer cancel()
	s.handling = engine.WithSession(handling, &s.Session)
	ids := make([]string, 16)
	for n := range ids {
		ids[n] = fmt.Sprint("m", n)
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		handled.Add(1)
		c.workers.take(s, amqp.Delivery{DeliveryTag: uint64(n + 1), MessageId: ids[n%16]})
		if n%16 == 15 {
			handled.Wait()
		}
	}
	handled.Wait()
}

// A freshInbox has no key yet.
type freshInbox struct{ driver.Inbox }

func (freshInbox) Claim(_ context.Context, _ bridge.Tx, _ string, keys []string) ([]string, error) {
	return keys, nil
}
func (freshInbox) DB() *sql.DB                            { return nil }
func (freshInbox) Enter(context.Context, bridge.Tx) error { return nil }
func (freshInbox) Leave(context.Context, bridge.Tx) error { return nil }

type noTransaction struct{ bridge.Tx }

func (noTransaction) Commit(context.Context) error { return nil }
func (noTransaction) Rollback()                    {}
func (noTransaction) Ping(context.Context) error   { return nil }
func (noTransaction) Close()                       {}
