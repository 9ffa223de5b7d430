package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
)

// What is the same for the strategies that keep marks. An event's text is its entity
// and its version or key, with a colon between them.

// A strategy handles events by one of them.
type strategy struct {
	handle func(ctx context.Context, db *sql.DB, d amqp.Delivery, fn idempotency.EventFunc) error
	stats  func() idempotency.Stats
}

// strategies makes one of each for a consumer, whose names are made of the given one.
func (r *receiver) strategies(consumer string, opts idempotency.Options) map[string]strategy {
	r.t.Helper()
	opts.HandBack = opts.DeadLetter == nil && !opts.DeadLetterExchange
	opts.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	latest, err := idempotency.NewLatest(r.inbox, consumer+" latest", versionOf, &opts)
	must(r.t, err)
	ordered, err := idempotency.NewOrdered(r.inbox, consumer+" ordered", versionOf, &idempotency.OrderedOptions{Options: opts})
	must(r.t, err)
	highWater, err := idempotency.NewHighWater(r.inbox, consumer+" high water", keyOf, &opts)
	must(r.t, err)
	type handle = func(ctx context.Context, db *sql.DB, d amqp.Delivery, fn func(context.Context, *sql.Tx) error) error
	itself := func(handle handle) func(context.Context, *sql.DB, amqp.Delivery, idempotency.EventFunc) error {
		return func(ctx context.Context, db *sql.DB, d amqp.Delivery, fn idempotency.EventFunc) error {
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
	return placeOrder(string(event.Body))(ctx, tx)
}

func keyOf(d amqp.Delivery) (entity, key string, err error) {
	entity, key, found := strings.Cut(string(d.Body), ":")
	if !found {
		return "", "", fmt.Errorf("no colon in %q", d.Body)
	}
	if key == "panic" {
		panic("strange key")
	}
	return entity, key, nil
}

func versionOf(d amqp.Delivery) (entity string, version int64, err error) {
	entity, text, err := keyOf(d)
	if err != nil {
		return "", 0, err
	}
	version, err = strconv.ParseInt(text, 10, 64)
	return entity, version, err
}

// event is a delivery of an event, under a tag of its own.
func (r *receiver) event(text string) amqp.Delivery {
	d := r.delivery("id of " + text)
	d.Body = []byte(text)
	d.Acknowledger = &closing{channel: r.channel}
	return d
}

// A closing channel can be closed.
type closing struct {
	*channel
	closed bool
}

func (c *closing) Close() error {
	if c.closed {
		return amqp.ErrClosed
	}
	c.closed = true
	return c.say("close", 0, false)
}

func (c *closing) IsClosed() bool { return c.closed }

// orderTexts returns what is in the table of orders, in the order of insertion.
func (r *receiver) orderTexts() string {
	r.t.Helper()
	rows, err := r.db.QueryContext(context.Background(), `SELECT id FROM orders ORDER BY rowid`)
	must(r.t, err)
	defer rows.Close()
	var all []string
	for rows.Next() {
		var id string
		must(r.t, rows.Scan(&id))
		all = append(all, id)
	}
	must(r.t, rows.Err())
	return strings.Join(all, " ")
}

func (r *receiver) wantOrders(want string) {
	r.t.Helper()
	if got := r.orderTexts(); got != want {
		r.t.Errorf("handled are %q, must be %q", got, want)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantStats(t *testing.T, got, want idempotency.Stats) {
	t.Helper()
	if got != want {
		t.Errorf("stats are %+v, want %+v", got, want)
	}
}

// In an order that is not that of their versions or keys, and with copies.
func TestAStrategyHandlesOnlyWhatIsAboveItsMark(t *testing.T) {
	for _, c := range []struct {
		strategy, events, handled string
		stats                     idempotency.Stats
	}{
		{"Latest", "a:0 a:3 b:1 a:2 a:3 a:9223372036854775807 a:10 b:2 b:0", "a:0 a:3 b:1 a:9223372036854775807 b:2",
			idempotency.Stats{Handled: 5, Stale: 4}},
		{"HighWater", "a:0009 a:0010 b:x a:0010 a:0009 a:0100 b:y b:z b:y", "a:0009 a:0010 b:x a:0100 b:y b:z",
			idempotency.Stats{Handled: 6, Duplicates: 3}},
		// The price of keeping only the mark, as the comment of HighWater says: what comes late.
		{"HighWater", "a:1 b:1 a:3 a:2", "a:1 b:1 a:3", idempotency.Stats{Handled: 3, Duplicates: 1}},
	} {
		r := newReceiver(t, idempotency.Options{})
		s := r.strategies("shop", idempotency.Options{})[c.strategy]
		for _, event := range strings.Fields(c.events) {
			must(t, s.handle(t.Context(), r.db, r.event(event), placeEvent))
		}
		r.wantOrders(c.handled)
		wantStats(t, s.stats(), c.stats)
		if n := r.rows("bridge_mark"); n != 2 {
			t.Errorf("%d rows for two entities", n)
		}
	}
}

func TestAnEventThatCannotBePlacedIsDeadLetteredWithTheReason(t *testing.T) {
	var reason error
	r := newReceiver(t, idempotency.Options{})
	for name, s := range r.strategies("shop", idempotency.Options{DeadLetter: func(_ context.Context, _ amqp.Delivery, why error) error {
		reason = why
		return nil
	}}) {
		long := strings.Repeat("x", 256)
		texts := map[string]string{"nothing": "no colon", ":1": "is empty", long + ":1": "256 bytes", "\xff:1": "not UTF-8",
			"a\x00b:1": "NUL", "a:panic": "panic: strange key"}
		var want idempotency.Stats
		if name == "HighWater" {
			must(t, s.handle(t.Context(), r.db, r.event("b:9"), placeEvent))
			want.Handled = 1
			texts["b:10"] = "cannot be compared"
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
			must(t, s.handle(t.Context(), r.db, r.event(text), func(ctx context.Context, tx *sql.Tx, _ amqp.Delivery) error {
				return mustNotRun(t)(ctx, tx)
			}))
			if reason == nil || !strings.Contains(reason.Error(), want) {
				t.Errorf("%s: %q is dead-lettered for %v, must be for %q", name, text, reason, want)
			}
		}
		want.DeadLettered = uint64(len(texts))
		wantStats(t, s.stats(), want)
	}
	if n := r.rows("bridge_mark") + r.rows("bridge_kept"); n != 1 {
		t.Errorf("%d rows are left, must be that of HighWater", n)
	}
}

func TestAMarkOfAnotherStrategyIsAnErrorAndLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{})
		highWater, err := idempotency.NewHighWater(r.inbox, "shop", keyOf, handBack)
		must(t, err)
		must(t, highWater.Handle(t.Context(), r.db, r.event("a:018f"), placeOrder("a")))
		latest, err := idempotency.NewLatest(r.inbox, "shop", versionOf, &idempotency.Options{DeadLetterExchange: true, Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		err = latest.Handle(t.Context(), r.db, r.event("a:1"), mustNotRun(t))
		if !errors.Is(err, idempotency.ErrHandedBack) || !strings.Contains(err.Error(), "another strategy") {
			t.Errorf("got %v", err)
		}
		r.wantSaid("ack 1", "requeue 2")
	})
}

// What is handed back comes again, and what was delivered after it on the same channel
// must not go before it.
func TestHighWaterHandlesNothingOfAChannelOnWhichItHandedSomethingBack(t *testing.T) {
	r := newReceiver(t, idempotency.Options{})
	highWater, err := idempotency.NewHighWater(r.inbox, "shop", keyOf, handBack)
	must(t, err)
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	first, second := r.event("a:1"), r.event("a:2")
	second.Acknowledger = first.Acknowledger
	if err := highWater.Handle(stopped, r.db, first, mustNotRun(t)); !errors.Is(err, idempotency.ErrHandedBack) {
		t.Errorf("got %v", err)
	}
	if err := highWater.Handle(t.Context(), r.db, second, mustNotRun(t)); !errors.Is(err, idempotency.ErrHandedBack) || !errors.Is(err, amqp.ErrClosed) {
		t.Errorf("got %v", err)
	}
	r.wantSaid("close 0")
	for _, event := range []string{"a:1", "a:2"} { // on another channel
		must(t, highWater.Handle(t.Context(), r.db, r.event(event), placeOrder(event)))
	}
	r.wantOrders("a:1 a:2")
	wantStats(t, highWater.Stats(), idempotency.Stats{HandedBack: 2, Handled: 2})
}
