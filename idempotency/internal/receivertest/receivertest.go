// Package receivertest is a receiver for the tests of the strategies: a database (SQLite) whose
// connections can be made to fail, a record of the calls to the broker, and a log.
package receivertest

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	_ "modernc.org/sqlite" // driver

	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
)

// A Receiver is a service without its strategy.
type Receiver struct {
	T       *testing.T
	DB      *sql.DB
	Faults  *Database
	Inbox   *Inbox
	Channel *Channel
	Log     *Logbook

	mu  sync.Mutex
	tag uint64
}

// New returns a Receiver with an inbox and a table of orders. Its commits do not wait for the disk.
func New(t *testing.T) *Receiver {
	t.Helper()
	faults, err := newDatabase("file:" + filepath.Join(t.TempDir(), "receiver.db") +
		"?_pragma=journal_mode(wal)&_pragma=busy_timeout(120000)&_pragma=foreign_keys(1)&_pragma=synchronous(off)")
	Must(t, err)
	r := &Receiver{T: t, DB: sql.OpenDB(faults), Faults: faults, Channel: &Channel{}, Log: &Logbook{}}
	t.Cleanup(func() { r.DB.Close() })
	Must(t, migrate.Inbox(t.Context(), r.DB, migrate.SQLite))
	r.Exec(`CREATE TABLE orders (id TEXT)`) // no unique index, so that a repeated insert shows
	inbox, err := sqlite.OpenInbox(t.Context(), r.DB)
	Must(t, err)
	r.Inbox = &Inbox{Inbox: inbox}
	return r
}

// Logger returns a logger that writes to Log.
func (r *Receiver) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(r.Log, nil)) }

func (r *Receiver) Exec(query string, args ...any) {
	r.T.Helper()
	if _, err := r.DB.ExecContext(context.Background(), query, args...); err != nil {
		r.T.Fatal(err)
	}
}

// Delivery returns a delivery of the message with this ID, with a new tag.
func (r *Receiver) Delivery(id string) amqp.Delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tag++
	return amqp.Delivery{Acknowledger: r.Channel, DeliveryTag: r.tag, MessageId: id, RoutingKey: "orders"}
}

// PlaceOrder returns a handler that stores an order.
func PlaceOrder(id string) func(context.Context, *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO orders (id) VALUES (?)`, id)
		return err
	}
}

// MustNotRun returns a handler that must not run.
func MustNotRun(t *testing.T) func(context.Context, *sql.Tx) error {
	return func(context.Context, *sql.Tx) error {
		t.Error("the handler ran")
		return nil
	}
}

// Orders counts the orders that are committed.
func (r *Receiver) Orders() int { return r.Rows("orders") }

// Keys counts the claims that are committed.
func (r *Receiver) Keys() int { return r.Rows("bridge_inbox") }

func (r *Receiver) Rows(table string) int {
	r.T.Helper()
	var n int
	Must(r.T, r.DB.QueryRowContext(context.Background(), `SELECT count(*) FROM `+table).Scan(&n))
	return n
}

func (r *Receiver) WantRows(orders, keys int) {
	r.T.Helper()
	if o, k := r.Orders(), r.Keys(); o != orders || k != keys {
		r.T.Errorf("%d orders and %d keys committed, want %d and %d", o, k, orders, keys)
	}
}

func (r *Receiver) WantSaid(want ...string) {
	r.T.Helper()
	if got := r.Channel.Heard(); !slices.Equal(got, want) {
		r.T.Errorf("sent the broker %q, want %q", got, want)
	}
}

// A Channel records the calls on it. With Err set it is closed.
type Channel struct {
	OnAck func()
	Err   error

	mu   sync.Mutex
	said []string
}

var _ amqp.Acknowledger = (*Channel)(nil)

func (c *Channel) Ack(tag uint64, multiple bool) error {
	if c.OnAck != nil {
		c.OnAck()
	}
	return c.Say("ack", tag, multiple)
}

func (c *Channel) Nack(tag uint64, multiple, requeue bool) error {
	if requeue {
		return c.Say("requeue", tag, multiple)
	}
	return c.Say("reject", tag, multiple)
}

func (c *Channel) Reject(tag uint64, requeue bool) error { panic("nack, not reject") }

// Say records a call to the broker.
func (c *Channel) Say(what string, tag uint64, multiple bool) error {
	if multiple {
		panic("a strategy acks one delivery at a time")
	}
	if c.Err != nil {
		return c.Err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, fmt.Sprint(what, " ", tag))
	return nil
}

func (c *Channel) Heard() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.said)
}

// A Logbook is a log that may be read while a logger writes it.
type Logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *Logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *Logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Goexit ends the goroutine, like a process that dies.
func Goexit() { runtime.Goexit() }

// KeyOf reads a key from a body as "entity:key".
func KeyOf(d amqp.Delivery) (entity, key string, err error) {
	entity, key, found := strings.Cut(string(d.Body), ":")
	if !found {
		return "", "", fmt.Errorf("no colon in %q", d.Body)
	}
	if key == "panic" {
		panic("strange key")
	}
	return entity, key, nil
}

// VersionOf reads a version from a body as "entity:version".
func VersionOf(d amqp.Delivery) (entity string, version int64, err error) {
	entity, text, err := KeyOf(d)
	if err != nil {
		return "", 0, err
	}
	version, err = strconv.ParseInt(text, 10, 64)
	return entity, version, err
}

// ErrHandler is the error of a handler.
var ErrHandler = errors.New("no such customer")

// Failing is a handler that fails.
func Failing(context.Context, *sql.Tx) error { return ErrHandler }

// Failures is how often a database fails: more often than a handler may.
const Failures = 8

// FailingTimes returns a function that fails n times.
func FailingTimes(n int) func() error {
	return func() error {
		if n--; n >= 0 {
			return ErrNetwork
		}
		return nil
	}
}

// Must ends the test after an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// WantStats compares the counts of a strategy.
func WantStats[S comparable](t *testing.T, got, want S) {
	t.Helper()
	if got != want {
		t.Errorf("stats are %+v, want %+v", got, want)
	}
}
