package idempotency_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	_ "modernc.org/sqlite"

	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
	"github.com/twoqueue/twoqueue/idempotency"
)

// A receiver is a service with a guard: its database (SQLite), what its guard
// told the broker, and its log.
type receiver struct {
	t       *testing.T
	db      *sql.DB
	faults  *faultyDatabase
	inbox   *faultyInbox
	guard   *idempotency.Guard
	channel *channel
	log     *logbook

	mu  sync.Mutex
	tag uint64
}

func newReceiver(t *testing.T, opts idempotency.Options) *receiver {
	t.Helper()
	faults, err := newFaultyDatabase("file:" + filepath.Join(t.TempDir(), "receiver.db") +
		"?_pragma=journal_mode(wal)&_pragma=busy_timeout(120000)&_pragma=foreign_keys(1)")
	must(t, err)
	r := &receiver{t: t, db: sql.OpenDB(faults), faults: faults, channel: &channel{}, log: &logbook{}}
	t.Cleanup(func() { r.db.Close() })
	must(t, migrate.Inbox(t.Context(), r.db, migrate.SQLite))
	r.exec(`CREATE TABLE orders (id TEXT)`) // no unique index: what is done twice shall show
	inbox, err := sqlite.OpenInbox(t.Context(), r.db)
	must(t, err)
	r.inbox = &faultyInbox{Inbox: inbox}
	opts.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	r.guard = r.newGuard("shop", opts)
	return r
}

// handBack are the options of a test in which nothing is dead-lettered.
var handBack = &idempotency.Options{HandBack: true}

func (r *receiver) newGuard(consumer string, opts idempotency.Options) *idempotency.Guard {
	r.t.Helper()
	opts.HandBack = !opts.DeadLetterExchange && opts.DeadLetter == nil
	guard, err := idempotency.New(r.inbox, consumer, &opts)
	must(r.t, err)
	return guard
}

func (r *receiver) exec(query string, args ...any) {
	r.t.Helper()
	if _, err := r.db.ExecContext(context.Background(), query, args...); err != nil {
		r.t.Fatal(err)
	}
}

// delivery is a delivery of the message with this ID, under a tag of its own.
func (r *receiver) delivery(id string) amqp.Delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tag++
	return amqp.Delivery{Acknowledger: r.channel, DeliveryTag: r.tag, MessageId: id, RoutingKey: "orders"}
}

// handle handles a delivery of m1, which must come to its end.
func (r *receiver) handle(fn func(context.Context, *sql.Tx) error) {
	r.t.Helper()
	must(r.t, r.guard.Handle(r.t.Context(), r.db, r.delivery("m1"), fn))
}

// placeOrder returns a handler that stores an order.
func placeOrder(id string) func(context.Context, *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO orders (id) VALUES (?)`, id)
		return err
	}
}

func mustNotRun(t *testing.T) func(context.Context, *sql.Tx) error {
	return func(context.Context, *sql.Tx) error {
		t.Error("the handler ran")
		return nil
	}
}

// orders counts the orders that are committed.
func (r *receiver) orders() int { return r.rows("orders") }

// keys counts the claims that are committed.
func (r *receiver) keys() int { return r.rows("bridge_inbox") }

func (r *receiver) rows(table string) int {
	r.t.Helper()
	var n int
	must(r.t, r.db.QueryRowContext(context.Background(), `SELECT count(*) FROM `+table).Scan(&n))
	return n
}

func (r *receiver) wantRows(orders, keys int) {
	r.t.Helper()
	if o, k := r.orders(), r.keys(); o != orders || k != keys {
		r.t.Errorf("%d orders and %d keys committed, want %d and %d", o, k, orders, keys)
	}
}

func (r *receiver) wantSaid(want ...string) {
	r.t.Helper()
	if got := r.channel.heard(); !slices.Equal(got, want) {
		r.t.Errorf("told the broker %q, want %q", got, want)
	}
}

func (r *receiver) wantStats(want idempotency.Stats) {
	r.t.Helper()
	if got := r.guard.Stats(); got != want {
		r.t.Errorf("stats are %+v, want %+v", got, want)
	}
}

// A channel records what it is told. With err set it is a closed one.
type channel struct {
	onAck func()
	err   error

	mu   sync.Mutex
	said []string
}

var _ amqp.Acknowledger = (*channel)(nil)

func (c *channel) Ack(tag uint64, multiple bool) error {
	if c.onAck != nil {
		c.onAck()
	}
	return c.say("ack", tag, multiple)
}

func (c *channel) Nack(tag uint64, multiple, requeue bool) error {
	if requeue {
		return c.say("requeue", tag, multiple)
	}
	return c.say("reject", tag, multiple)
}

func (c *channel) Reject(tag uint64, requeue bool) error { panic("nack, not reject") }

func (c *channel) say(what string, tag uint64, multiple bool) error {
	if multiple {
		panic("a guard speaks for one delivery only")
	}
	if c.err != nil {
		return c.err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, fmt.Sprint(what, " ", tag))
	return nil
}

func (c *channel) heard() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.said)
}

// A logbook is a log that may be read while it is written.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// goexit ends the goroutine, as the process does that dies.
func goexit() { runtime.Goexit() }
