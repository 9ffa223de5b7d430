package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
	"github.com/twoqueue/twoqueue/idempotency"
)

// What is the same for the strategies that keep marks. An event's text is its entity
// and its version or key, with a colon between them.

// A strategy handles events by one of them.
type strategy struct {
	handle func(ctx context.Context, db *sql.DB, d amqp.Delivery, fn func(context.Context, *sql.Tx) error) error
	stats  func() idempotency.Stats
}

func strategies(t *testing.T, keeper driver.Keeper, opts idempotency.Options) map[string]strategy {
	t.Helper()
	opts.HandBack = !opts.DeadLetterExchange && opts.DeadLetter == nil
	latest, err := idempotency.NewLatest(keeper, "latest", versionOf, &opts)
	must(t, err)
	ordered, err := idempotency.NewOrdered(keeper, "ordered", versionOf, &idempotency.OrderedOptions{Options: opts})
	must(t, err)
	highWater, err := idempotency.NewHighWater(keeper, "high water", keyOf, &opts)
	must(t, err)
	return map[string]strategy{
		"Latest": {latest.Handle, latest.Stats},
		"Ordered": {func(ctx context.Context, db *sql.DB, d amqp.Delivery, fn func(context.Context, *sql.Tx) error) error {
			return ordered.Handle(ctx, db, d, func(ctx context.Context, tx *sql.Tx, _ amqp.Delivery) error { return fn(ctx, tx) })
		}, ordered.Stats},
		"HighWater": {highWater.Handle, highWater.Stats},
	}
}

// onEachStrategy runs a test for each of them, each with a receiver of its own.
func onEachStrategy(t *testing.T, opts idempotency.Options, test func(t *testing.T, r *receiver, keeper *faultyKeeper, s strategy)) {
	for _, name := range []string{"Latest", "Ordered", "HighWater"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, opts)
				keeper := newKeeper(t, r)
				opts.Logger = slog.New(slog.NewTextHandler(r.log, nil))
				test(t, r, keeper, strategies(t, keeper, opts)[name])
			})
		})
	}
}

// A faultyKeeper fails its first locks.
type faultyKeeper struct {
	driver.Keeper
	failures atomic.Int32 // how many are still to fail
}

func newKeeper(t *testing.T, r *receiver) *faultyKeeper {
	t.Helper()
	inbox, err := sqlite.OpenInbox(t.Context(), r.db)
	must(t, err)
	return &faultyKeeper{Keeper: inbox}
}

func (k *faultyKeeper) LockMark(ctx context.Context, tx bridge.Tx, consumer, name string) (string, error) {
	if k.failures.Add(-1) >= 0 {
		return "", errNetwork
	}
	return k.Keeper.LockMark(ctx, tx, consumer, name)
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

func TestAStrategyThatCannotWorkIsRefused(t *testing.T) {
	keeper := &faultyKeeper{}
	negative := int64(-1)
	for want, make := range map[string]func() error{
		"marks is nil":     func() error { _, err := idempotency.NewLatest(nil, "c", versionOf, nil); return err },
		"versionOf is nil": func() error { _, err := idempotency.NewLatest(keeper, "c", nil, nil); return err },
		"name is empty":    func() error { _, err := idempotency.NewLatest(keeper, "", versionOf, nil); return err },
		"Options.Hold": func() error {
			_, err := idempotency.NewLatest(keeper, "c", versionOf, &idempotency.Options{Hold: -1})
			return err
		},
		"Options.Key ": func() error {
			_, err := idempotency.NewHighWater(keeper, "c", keyOf, &idempotency.Options{Key: func(amqp.Delivery) (string, error) { return "", nil }})
			return err
		},
		"Options.Retention ": func() error {
			_, err := idempotency.NewLatest(keeper, "c", versionOf, &idempotency.Options{Retention: time.Hour})
			return err
		},
		"keyOf is nil":   func() error { _, err := idempotency.NewHighWater(keeper, "c", nil, nil); return err },
		"water: marks":   func() error { _, err := idempotency.NewHighWater(nil, "c", keyOf, nil); return err },
		"keeper is nil":  func() error { _, err := idempotency.NewOrdered(nil, "c", versionOf, nil); return err },
		"ordered: versi": func() error { _, err := idempotency.NewOrdered(keeper, "c", nil, nil); return err },
		"OrderedOptions.Start": func() error {
			_, err := idempotency.NewOrdered(keeper, "c", versionOf, &idempotency.OrderedOptions{Start: &negative})
			return err
		},
		"OrderedOptions.MaxKept ": func() error {
			_, err := idempotency.NewOrdered(keeper, "c", versionOf, &idempotency.OrderedOptions{MaxKept: -1})
			return err
		},
		"OrderedOptions.MaxKeptBytes": func() error {
			_, err := idempotency.NewOrdered(keeper, "c", versionOf, &idempotency.OrderedOptions{MaxKeptBytes: -1})
			return err
		},
		"OrderedOptions.GapAge": func() error {
			_, err := idempotency.NewOrdered(keeper, "c", versionOf, &idempotency.OrderedOptions{GapAge: -1})
			return err
		},
	} {
		if err := make(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestAnEventThatCannotBePlacedIsDeadLetteredWithTheReason(t *testing.T) {
	var reason error
	opts := idempotency.Options{DeadLetter: func(_ context.Context, _ amqp.Delivery, why error) error {
		reason = why
		return nil
	}}
	onEachStrategy(t, opts, func(t *testing.T, r *receiver, _ *faultyKeeper, s strategy) {
		long := strings.Repeat("x", 256)
		texts := map[string]string{"nothing": "no colon", ":1": "is empty", long + ":1": "256 bytes", "\xff:1": "not UTF-8",
			"a\x00b:1": "NUL", "a:panic": "panic: strange key"}
		if strings.HasSuffix(t.Name(), "HighWater") {
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
			must(t, s.handle(t.Context(), r.db, r.event(text), mustNotRun(t)))
			if reason == nil || !strings.Contains(reason.Error(), want) {
				t.Errorf("%q is dead-lettered for %v, must be for %q", text, reason, want)
			}
		}
		wantStats(t, s.stats(), idempotency.Stats{DeadLettered: uint64(len(texts))})
		if n := r.rows("bridge_mark") + r.rows("bridge_kept"); n != 0 {
			t.Errorf("%d rows are left", n)
		}
	})
}

func TestAFailingHandlerLeavesTheMarkAsItWas(t *testing.T) {
	for name, fail := range map[string]func() error{"error": func() error { return errHandler }, "panic": func() error { panic("no") }} {
		t.Run(name, func(t *testing.T) {
			opts := idempotency.Options{Attempts: 3, DeadLetterExchange: true}
			onEachStrategy(t, opts, func(t *testing.T, r *receiver, _ *faultyKeeper, s strategy) {
				runs := 0
				err := s.handle(t.Context(), r.db, r.event("a:1"), func(ctx context.Context, tx *sql.Tx) error {
					runs++
					must(t, placeOrder("a:1")(ctx, tx))
					return fail()
				})
				must(t, err)
				if runs != 3 {
					t.Errorf("ran %d times", runs)
				}
				r.wantSaid("reject 1")
				r.wantOrders("")
				must(t, s.handle(t.Context(), r.db, r.event("a:1"), placeOrder("a:1"))) // put back in the queue
				r.wantOrders("a:1")
				wantStats(t, s.stats(), idempotency.Stats{Handled: 1, DeadLettered: 1, FailedAttempts: 3})
			})
		})
	}
}

func TestAFailingDatabaseDoesNotCountAgainstTheEvent(t *testing.T) {
	opts := idempotency.Options{Attempts: 1, DeadLetterExchange: true}
	onEachStrategy(t, opts, func(t *testing.T, r *receiver, keeper *faultyKeeper, s strategy) {
		keeper.failures.Store(5)
		must(t, s.handle(t.Context(), r.db, r.event("a:1"), placeOrder("a:1")))
		r.wantOrders("a:1")
		r.wantSaid("ack 1")
		wantStats(t, s.stats(), idempotency.Stats{Handled: 1})
	})
}

func TestADatabaseThatStaysAwayHandsTheEventBack(t *testing.T) {
	opts := idempotency.Options{Attempts: 1, DeadLetterExchange: true, Hold: time.Minute}
	onEachStrategy(t, opts, func(t *testing.T, r *receiver, keeper *faultyKeeper, s strategy) {
		keeper.failures.Store(1 << 30)
		err := s.handle(t.Context(), r.db, r.event("a:1"), mustNotRun(t))
		if !errors.Is(err, idempotency.ErrHandedBack) || !errors.Is(err, errNetwork) {
			t.Errorf("got %v", err)
		}
		if strings.HasSuffix(t.Name(), "HighWater") {
			r.wantSaid("close 0")
		} else {
			r.wantSaid("requeue 1")
		}
		wantStats(t, s.stats(), idempotency.Stats{HandedBack: 1})
	})
}

func TestAnEventWhoseCommitWasNotAnsweredIsHandledOnce(t *testing.T) {
	for name, c := range map[string]struct {
		done bool
		want idempotency.Stats
	}{
		"done":     {true, idempotency.Stats{Duplicates: 1}},
		"not done": {false, idempotency.Stats{Handled: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			opts := idempotency.Options{Attempts: 1, DeadLetterExchange: true}
			onEachStrategy(t, opts, func(t *testing.T, r *receiver, _ *faultyKeeper, s strategy) {
				r.faults.commit = func(commit func() error) error {
					r.faults.commit = nil
					if c.done {
						must(t, commit())
					}
					return errNetwork
				}
				must(t, s.handle(t.Context(), r.db, r.event("a:1"), placeOrder("a:1")))
				r.wantOrders("a:1")
				r.wantSaid("ack 1")
				want := c.want
				if c.done && strings.HasSuffix(t.Name(), "Latest") {
					want = idempotency.Stats{Stale: 1}
				}
				wantStats(t, s.stats(), want)
			})
		})
	}
}

func TestAMarkOfAnotherStrategyIsAnErrorAndLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{})
		keeper := newKeeper(t, r)
		highWater, err := idempotency.NewHighWater(keeper, "shop", keyOf, handBack)
		must(t, err)
		must(t, highWater.Handle(t.Context(), r.db, r.event("a:018f"), placeOrder("a")))
		latest, err := idempotency.NewLatest(keeper, "shop", versionOf, &idempotency.Options{DeadLetterExchange: true, Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		err = latest.Handle(t.Context(), r.db, r.event("a:1"), mustNotRun(t))
		if !errors.Is(err, idempotency.ErrHandedBack) || !strings.Contains(err.Error(), "another strategy") {
			t.Errorf("got %v", err)
		}
		r.wantSaid("ack 1", "requeue 2")
	})
}
