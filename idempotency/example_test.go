package idempotency_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
	"github.com/twoqueue/twoqueue/idempotency"
)

// A shop stores each order once, although the broker delivers it twice.
func Example() {
	dir, err := os.MkdirTemp("", "shop")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+"?_pragma=journal_mode(wal)&_pragma=busy_timeout(5000)")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()

	ctx := context.Background()
	if err := migrate.Inbox(ctx, db, migrate.SQLite); err != nil {
		log.Fatal(err)
	}
	inbox, err := sqlite.OpenInbox(ctx, db)
	if err != nil {
		log.Fatal(err)
	}
	dedup, err := idempotency.New(inbox, "shop", &idempotency.Options{DeadLetterExchange: true})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE orders (body BLOB)`); err != nil {
		log.Fatal(err)
	}

	for d := range deliveries() {
		err := dedup.Handle(ctx, db, d, func(ctx context.Context, tx *sql.Tx) error {
			fmt.Printf("store %s\n", d.Body)
			_, err := tx.ExecContext(ctx, `INSERT INTO orders (body) VALUES (?)`, d.Body)
			return err
		})
		if err != nil {
			log.Print(err) // the message comes again
		}
	}
	stats := dedup.Stats()
	fmt.Printf("%d handled, %d duplicate\n", stats.Handled, stats.Duplicates)
	// Output:
	// store two apples
	// ack 1
	// ack 2
	// 1 handled, 1 duplicate
}

// deliveries replaces the channel that Consume (with manual acks) of an amqp.Channel returns.
func deliveries() <-chan amqp.Delivery {
	order := amqp.Delivery{
		Acknowledger: printer{},
		MessageId:    "order-1041",
		Body:         []byte("two apples"),
	}
	out := make(chan amqp.Delivery, 2)
	for tag := range uint64(2) {
		order.DeliveryTag = tag + 1
		out <- order
	}
	close(out)
	return out
}

type printer struct{ amqp.Acknowledger }

func (printer) Ack(tag uint64, _ bool) error {
	fmt.Println("ack", tag)
	return nil
}
