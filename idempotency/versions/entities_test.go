package versions_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
	"github.com/twoqueue/twoqueue/idempotency/versions"
)

// The common part of the strategies that keep marks. An event's text is its entity and its version
// or key, with a colon between them.

// A strategy has the Handle and the Stats of one of them.
type strategy struct {
	handle func(ctx context.Context, db *sql.DB, d amqp.Delivery, fn versions.EventFunc) error
	stats  func() idempotency.Stats
}

// strategies makes one of each, with consumer names that begin with the given one.
func (r *receiver) strategies(consumer string, opts versions.Options) map[string]strategy {
	r.T.Helper()
	opts.HandBack = opts.DeadLetter == nil && !opts.DeadLetterExchange
	opts.Logger = slog.New(slog.NewTextHandler(r.Log, nil))
	latest, err := versions.NewLatest(r.Inbox, consumer+" latest", receivertest.VersionOf, &opts)
	receivertest.Must(r.T, err)
	ordered, err := versions.NewOrdered(r.Inbox, consumer+" ordered", receivertest.VersionOf, &versions.OrderedOptions{Options: opts})
	receivertest.Must(r.T, err)
	highWater, err := versions.NewHighWater(r.Inbox, consumer+" high water", receivertest.KeyOf, &opts)
	receivertest.Must(r.T, err)
	type handle = func(ctx context.Context, db *sql.DB, d amqp.Delivery, fn func(context.Context, *sql.Tx) error) error
	itself := func(handle handle) func(context.Context, *sql.DB, amqp.Delivery, versions.EventFunc) error {
		return func(ctx context.Context, db *sql.DB, d amqp.Delivery, fn versions.EventFunc) error {
			return handle(ctx, db, d, func(ctx context.Context, tx *sql.Tx) error { return fn(ctx, tx, d) })
		}
	}
	return map[string]strategy{
		"Latest":    {itself(latest.Handle), latest.Stats},
		"Ordered":   {ordered.Handle, ordered.Stats},
		"HighWater": {itself(highWater.Handle), highWater.Stats},
	}
}

// placeEvent stores an event's text as an order.
func placeEvent(ctx context.Context, tx *sql.Tx, event amqp.Delivery) error {
	return receivertest.PlaceOrder(string(event.Body))(ctx, tx)
}

// event returns a delivery of an event, with a new tag.
func (r *receiver) event(text string) amqp.Delivery {
	d := r.Delivery("id of " + text)
	d.Body = []byte(text)
	d.Acknowledger = &closing{Channel: r.Channel}
	return d
}

// A closing channel can be closed.
type closing struct {
	*receivertest.Channel
	closed bool
}

func (c *closing) Close() error {
	if c.closed {
		return amqp.ErrClosed
	}
	c.closed = true
	return c.Say("close", 0, false)
}

func (c *closing) IsClosed() bool { return c.closed }

// orderTexts returns the texts in the table of orders, in the order of insertion.
func (r *receiver) orderTexts() string {
	r.T.Helper()
	rows, err := r.DB.QueryContext(context.Background(), `SELECT id FROM orders ORDER BY rowid`)
	receivertest.Must(r.T, err)
	defer rows.Close()
	var all []string
	for rows.Next() {
		var id string
		receivertest.Must(r.T, rows.Scan(&id))
		all = append(all, id)
	}
	receivertest.Must(r.T, rows.Err())
	return strings.Join(all, " ")
}

func (r *receiver) wantOrders(want string) {
	r.T.Helper()
	if got := r.orderTexts(); got != want {
		r.T.Errorf("%q are handled, must be %q", got, want)
	}
}

// In another order than by version or key, and with copies.
func TestAStrategyHandlesOnlyEventsAboveItsMark(t *testing.T) {
	for _, c := range []struct {
		strategy, events, handled string
		stats                     idempotency.Stats
	}{
		{"Latest", "a:0 a:3 b:1 a:2 a:3 a:9223372036854775807 a:10 b:2 b:0", "a:0 a:3 b:1 a:9223372036854775807 b:2",
			idempotency.Stats{Handled: 5, Stale: 4}},
		{"HighWater", "a:0009 a:0010 b:x a:0010 a:0009 a:0100 b:y b:z b:y", "a:0009 a:0010 b:x a:0100 b:y b:z",
			idempotency.Stats{Handled: 6, Duplicates: 3}},
		// The price of keeping only the mark, as HighWater's comment says: a late message counts as a
		// duplicate.
		{"HighWater", "a:1 b:1 a:3 a:2", "a:1 b:1 a:3", idempotency.Stats{Handled: 3, Duplicates: 1}},
	} {
		r := newReceiver(t)
		s := r.strategies("shop", versions.Options{})[c.strategy]
		for _, event := range strings.Fields(c.events) {
			receivertest.Must(t, s.handle(t.Context(), r.DB, r.event(event), placeEvent))
		}
		r.wantOrders(c.handled)
		receivertest.WantStats(t, s.stats(), c.stats)
		if n := r.Rows("bridge_mark"); n != 2 {
			t.Errorf("%d rows for two entities", n)
		}
	}
}

func TestAnEventThatCannotBePlacedIsDeadLetteredWithTheReason(t *testing.T) {
	var reason error
	r := newReceiver(t)
	for name, s := range r.strategies("shop", versions.Options{DeadLetter: func(_ context.Context, _ amqp.Delivery, why error) error {
		reason = why
		return nil
	}}) {
		long := strings.Repeat("x", 256)
		texts := map[string]string{"nothing": "no colon", ":1": "is empty", long + ":1": "256 bytes", "\xff:1": "not UTF-8",
			"a\x00b:1": "NUL", "a:panic": "panic: strange key"}
		var want idempotency.Stats
		if name == "HighWater" {
			receivertest.Must(t, s.handle(t.Context(), r.DB, r.event("b:9"), placeEvent))
			want.Handled = 1
			texts["b:10"] = "must have equal length"
			texts["a:"] = "key is empty"
			texts["a:"+long] = "256 bytes"
			texts["a:\xff"] = "not UTF-8"
		} else {
			texts["a:"] = "parsing"
			texts["a:x"] = "parsing"
			texts["a:1.5"] = "parsing"
			texts["a:-1"] = "negative"
			texts["a:9223372036854775808"] = "out of range"
		}
		for text, want := range texts {
			reason = nil
			receivertest.Must(t, s.handle(t.Context(), r.DB, r.event(text), func(ctx context.Context, tx *sql.Tx, _ amqp.Delivery) error {
				return receivertest.MustNotRun(t)(ctx, tx)
			}))
			if reason == nil || !strings.Contains(reason.Error(), want) {
				t.Errorf("%s: %q is dead-lettered for %v, must be for %q", name, text, reason, want)
			}
		}
		unreadable := r.event("c:1")
		unreadable.Headers = amqp.Table{"x-bridge-dead-record": "1", "x-bridge-unreadable": "headers are malformed"}
		receivertest.Must(t, s.handle(t.Context(), r.DB, unreadable, func(ctx context.Context, tx *sql.Tx, _ amqp.Delivery) error {
			return receivertest.MustNotRun(t)(ctx, tx)
		}))
		want.DeadLettered = uint64(len(texts)) + 1
		receivertest.WantStats(t, s.stats(), want)
	}
	if n := r.Rows("bridge_mark") + r.Rows("bridge_kept"); n != 1 {
		t.Errorf("%d rows are left, must be HighWater's only", n)
	}
}

func TestAMarkOfAnotherStrategyIsAnErrorAndLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t)
		highWater, err := versions.NewHighWater(r.Inbox, "shop", receivertest.KeyOf, handBack)
		receivertest.Must(t, err)
		receivertest.Must(t, highWater.Handle(t.Context(), r.DB, r.event("a:018f"), receivertest.PlaceOrder("a")))
		latest, err := versions.NewLatest(r.Inbox, "shop", receivertest.VersionOf, &versions.Options{DeadLetterExchange: true, Logger: slog.New(slog.DiscardHandler)})
		receivertest.Must(t, err)
		err = latest.Handle(t.Context(), r.DB, r.event("a:1"), receivertest.MustNotRun(t))
		if !errors.Is(err, idempotency.ErrHandedBack) || !strings.Contains(err.Error(), "another strategy") {
			t.Errorf("got %v", err)
		}
		r.WantSaid("ack 1", "requeue 2")
	})
}

// A message that is handed back comes again. Later deliveries of the same channel must not be
// handled before it.
func TestHighWaterHandlesNothingOfAChannelOnWhichItHandedSomethingBack(t *testing.T) {
	r := newReceiver(t)
	highWater, err := versions.NewHighWater(r.Inbox, "shop", receivertest.KeyOf, handBack)
	receivertest.Must(t, err)
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	first, second := r.event("a:1"), r.event("a:2")
	second.Acknowledger = first.Acknowledger
	if err := highWater.Handle(stopped, r.DB, first, receivertest.MustNotRun(t)); !errors.Is(err, idempotency.ErrHandedBack) {
		t.Errorf("got %v", err)
	}
	if err := highWater.Handle(t.Context(), r.DB, second, receivertest.MustNotRun(t)); !errors.Is(err, idempotency.ErrHandedBack) || !errors.Is(err, amqp.ErrClosed) {
		t.Errorf("got %v", err)
	}
	r.WantSaid("close 0")
	for _, event := range []string{"a:1", "a:2"} { // on another channel
		receivertest.Must(t, highWater.Handle(t.Context(), r.DB, r.event(event), receivertest.PlaceOrder(event)))
	}
	r.wantOrders("a:1 a:2")
	receivertest.WantStats(t, highWater.Stats(), idempotency.Stats{HandedBack: 2, Handled: 2})
}
