// Package idempotency_test shows the guard's promises on a real RabbitMQ and
// real databases.
package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	amqp "github.com/rabbitmq/amqp091-go"
	_ "modernc.org/sqlite"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// patience bounds every wait of these tests; it only decides how long a failure takes.
const patience = servertest.Patience

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		play(text)
		return
	}
	servertest.Main(m)
}

// A database is one with an inbox and a table of orders, in which an order that
// is stored twice shows.
type database struct {
	*sql.DB
	inbox       driver.Inbox
	driver, dsn string
}

// onEachDatabase runs a test on PostgreSQL and SQLite.
func onEachDatabase(t *testing.T, test func(t *testing.T, db *database)) {
	t.Run("PostgreSQL", func(t *testing.T) { test(t, newPostgres(t)) })
	t.Run("SQLite", func(t *testing.T) { test(t, newSQLite(t)) })
}

func newPostgres(t *testing.T) *database {
	t.Helper()
	return create(t, "pgx", servertest.PostgresDB(t), migrate.PostgreSQL)
}

func newMariaDB(t *testing.T) *database {
	t.Helper()
	return create(t, "mysql", servertest.MariaDBDatabase(t), migrate.MySQL)
}

func newSQLite(t *testing.T) *database {
	t.Helper()
	return create(t, "sqlite", "file:"+filepath.Join(t.TempDir(), "receiver.db")+
		"?_pragma=journal_mode(wal)&_pragma=busy_timeout(120000)", migrate.SQLite)
}

func create(t *testing.T, driver, dsn string, dialect migrate.Dialect) *database {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := migrate.Inbox(t.Context(), db, dialect); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE orders (id TEXT)`); err != nil {
		t.Fatal(err)
	}
	opened, err := open(t.Context(), driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { opened.Close() })
	return opened
}

func open(ctx context.Context, driver, dsn string) (*database, error) {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return nil, err
	}
	opened := &database{DB: db, driver: driver, dsn: dsn}
	switch driver {
	case "sqlite":
		opened.inbox, err = sqlite.OpenInbox(ctx, db)
	case "mysql":
		opened.inbox, err = mysql.OpenInbox(ctx, db)
	default:
		opened.inbox, err = postgres.OpenInbox(ctx, db)
	}
	return opened, err
}

// placeOrder stores an order in tx.
func (db *database) placeOrder(ctx context.Context, tx *sql.Tx, id string) error {
	insert := `INSERT INTO orders (id) VALUES ($1)`
	if db.driver != "pgx" {
		insert = `INSERT INTO orders (id) VALUES (?)`
	}
	_, err := tx.ExecContext(ctx, insert, id)
	return err
}

// wantOrders checks how many orders are committed, each of them once.
func (db *database) wantOrders(t *testing.T, want int) {
	t.Helper()
	var all, distinct, keys int
	err := db.QueryRowContext(t.Context(), `SELECT count(*), count(DISTINCT id), (SELECT count(*) FROM bridge_inbox) FROM orders`).
		Scan(&all, &distinct, &keys)
	if err != nil {
		t.Fatal(err)
	}
	if all != want || distinct != want || keys != want {
		t.Errorf("%d orders (%d different) and %d keys are committed, want %d of each", all, distinct, keys, want)
	}
}

func newGuard(t *testing.T, inbox driver.Inbox, opts idempotency.Options) *idempotency.Guard {
	t.Helper()
	opts.Logger = slog.New(slog.NewTextHandler(testLog{t}, nil))
	opts.HandBack = !opts.DeadLetterExchange && opts.DeadLetter == nil
	guard, err := idempotency.New(inbox, "shop", &opts)
	if err != nil {
		t.Fatal(err)
	}
	return guard
}

type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%s", p)
	return len(p), nil
}

var _ io.Writer = testLog{}

// A queue is one in a vhost of its own, with a connection to it.
type queue struct {
	t    *testing.T
	url  string
	name string
	*amqp.Channel
	consumers []*amqp.Connection
}

const dead = "dead"

var (
	quorum        = amqp.Table{"x-queue-type": "quorum"}
	classic       = amqp.Table{"x-queue-type": "classic"}
	quorumToDead  = amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
	classicToDead = amqp.Table{"x-queue-type": "classic", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
)

// newQueue declares a queue with these arguments, and the dead queue.
func newQueue(t *testing.T, arguments amqp.Table) *queue {
	t.Helper()
	return newQueueOn(t, servertest.Vhost(t), arguments)
}

func newQueueOn(t *testing.T, url string, arguments amqp.Table) *queue {
	t.Helper()
	q := &queue{t: t, url: url, name: fmt.Sprintf("orders-%d", time.Now().UnixNano())}
	_, q.Channel = q.dial()
	if _, err := q.QueueDeclare(q.name, true, false, false, false, arguments); err != nil {
		t.Fatal(err)
	}
	if _, err := q.QueueDeclare(dead, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := q.Confirm(false); err != nil {
		t.Fatal(err)
	}
	return q
}

// dial opens another connection, with one channel.
func (q *queue) dial() (*amqp.Connection, *amqp.Channel) {
	q.t.Helper()
	conn, err := amqp.Dial(q.url)
	if err != nil {
		q.t.Fatal(err)
	}
	q.t.Cleanup(func() { _ = conn.Close() }) // some tests close it before
	channel, err := conn.Channel()
	if err != nil {
		q.t.Fatal(err)
	}
	return conn, channel
}

// publish puts messages with these IDs in the queue.
func (q *queue) publish(ids ...string) {
	q.t.Helper()
	for _, id := range ids {
		confirm, err := q.PublishWithDeferredConfirm("", q.name, true, false,
			amqp.Publishing{MessageId: id, DeliveryMode: amqp.Persistent, Body: []byte(id)})
		if err != nil {
			q.t.Fatal(err)
		}
		if acked, err := confirm.WaitContext(q.t.Context()); err != nil || !acked {
			q.t.Fatalf("message %s not confirmed: %v", id, err)
		}
	}
}

// consume starts a consumer on a connection of its own.
func (q *queue) consume() <-chan amqp.Delivery {
	q.t.Helper()
	conn, channel := q.dial()
	q.consumers = append(q.consumers, conn)
	return consume(q.t, channel, q.name)
}

func consume(t *testing.T, channel *amqp.Channel, name string) <-chan amqp.Delivery {
	t.Helper()
	if err := channel.Qos(20, 0, false); err != nil {
		t.Fatal(err)
	}
	deliveries, err := channel.Consume(name, "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return deliveries
}

// next waits for a delivery.
func next(t *testing.T, deliveries <-chan amqp.Delivery) amqp.Delivery {
	t.Helper()
	select {
	case d, ok := <-deliveries:
		if !ok {
			t.Fatal("the channel was closed")
		}
		return d
	case <-time.After(patience):
		t.Fatal("no delivery")
	}
	panic("unreachable")
}

// stopConsumers closes the consumers' connections, and returns when the broker
// has noticed: then what they had not acked is in the queue again.
func (q *queue) stopConsumers() {
	q.t.Helper()
	for _, conn := range q.consumers {
		if err := conn.Close(); err != nil && !errors.Is(err, amqp.ErrClosed) {
			q.t.Error(err)
		}
	}
	q.consumers = nil
	q.deserted()
}

// wantEmpty checks that the queue holds nothing, and nothing is unacked.
func (q *queue) wantEmpty() {
	q.t.Helper()
	q.stopConsumers()
	if d, ok, err := q.Get(q.name, true); err != nil || ok {
		q.t.Errorf("the queue holds message %q (err %v)", d.MessageId, err)
	}
}

// nextDead waits for a message in the dead queue, and takes it.
func (q *queue) nextDead() (d amqp.Delivery) {
	q.t.Helper()
	eventually(q.t, "a message is dead", func() (ok bool, err error) {
		d, ok, err = q.Get(dead, true)
		return ok, err
	})
	return d
}

// mishap is how a handler ends that fails and panics at random, in a tenth each.
func mishap() error {
	switch rand.IntN(10) {
	case 0:
		return errHandler
	case 1:
		panic("out of range")
	}
	return nil
}

// eventually asks until the answer is yes.
func eventually(t *testing.T, what string, ask func() (bool, error)) {
	t.Helper()
	if err := servertest.Await(t.Context(), what, ask); err != nil {
		t.Fatal(err)
	}
}
