package pending_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
	"github.com/twoqueue/twoqueue/idempotency/idempotencytest"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

// An e-mail must not be sent twice. It is unknown whether this one was sent. An operator looks into
// the mail server's log, and lets it be sent again.
func ExampleEffects_AtMostOnce() {
	ctx := context.Background()
	db, inbox, closeDB := openShop(ctx)
	defer closeDB()
	effects, err := pending.New(inbox, "mailer", &pending.Options{
		DeadLetterExchange: true, Poll: time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	answers := []error{errors.New("connection lost after DATA"), nil}
	send := func(ctx context.Context, d amqp.Delivery) error {
		fmt.Printf("send %s\n", d.Body)
		answer := answers[0]
		answers = answers[1:]
		return answer
	}
	first := idempotencytest.New(order)
	for _, d := range []*idempotencytest.Delivery{first, first.Again()} { // a Consumer would deliver them
		if err := effects.AtMostOnce(ctx, db, d.Delivery, send); err != nil {
			log.Print(err) // the message comes again
		}
		fmt.Println(d.Outcome())
	}

	doubtful, err := effects.List(ctx, db, pending.Doubtful, "", 10)
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range doubtful {
		fmt.Printf("%s is doubtful: %s\n", p.Key, p.Error)
		if err := effects.Retry(ctx, db, p.Key); err != nil { // or MarkDone
			log.Fatal(err)
		}
	}

	ctx, stop := context.WithCancel(ctx)
	_ = effects.Resume(ctx, db, func(ctx context.Context, d amqp.Delivery) error {
		defer stop() // a service runs it without end
		return send(ctx, d)
	})
	// Output:
	// send two apples
	// acked
	// acked
	// order-1041 is doubtful: connection lost after DATA
	// send two apples
}

// A report takes long. The message is stored and acked at once, and a worker makes the report.
func ExampleWorker() {
	ctx := context.Background()
	db, inbox, closeDB := openShop(ctx)
	defer closeDB()
	worker, err := pending.NewWorker(inbox, "reports", &pending.WorkerOptions{
		DeadLetterExchange: true, MinDelay: time.Millisecond, Poll: time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	first := idempotencytest.New(order)
	for _, d := range []*idempotencytest.Delivery{first, first.Again()} { // a Consumer would deliver them
		if err := worker.Accept(ctx, db, d.Delivery); err != nil {
			log.Print(err) // the message comes again
		}
		fmt.Println(d.Outcome())
	}

	ctx, stop := context.WithCancel(ctx)
	attempts := 0
	err = worker.Work(ctx, db, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
		if attempts++; attempts == 1 {
			return errors.New("no figures yet")
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO orders (body) VALUES (?)`, d.Body)
		fmt.Printf("report on %s at attempt %d\n", d.Body, attempts)
		time.AfterFunc(100*time.Millisecond, stop) // a service works without end
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// acked
	// acked
	// report on two apples at attempt 2
}

// order is the message of the examples.
var order = bridge.Message{RoutingKey: "orders", Publishing: amqp.Publishing{MessageId: "order-1041", Body: []byte("two apples")}}

// openShop makes a database with an inbox.
func openShop(ctx context.Context) (db *sql.DB, inbox *sqlite.Inbox, closeDB func()) {
	dir, err := os.MkdirTemp("", "shop")
	if err != nil {
		log.Fatal(err)
	}
	db, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+"?_pragma=journal_mode(wal)&_pragma=busy_timeout(5000)")
	if err != nil {
		log.Fatal(err)
	}
	if err := migrate.Inbox(ctx, db, migrate.SQLite); err != nil {
		log.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE orders (body BLOB)`); err != nil {
		log.Fatal(err)
	}
	inbox, err = sqlite.OpenInbox(ctx, db)
	if err != nil {
		log.Fatal(err)
	}
	return db, inbox, func() {
		db.Close()
		os.RemoveAll(dir)
	}
}
