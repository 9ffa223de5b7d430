package versions_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
	"github.com/twoqueue/twoqueue/idempotency/versions"
)

// exampleEvent returns a delivery of an event of a customer.
func exampleEvent(version int64, body string) amqp.Delivery {
	return amqp.Delivery{Acknowledger: silent{}, Headers: amqp.Table{"customer": "17", "version": version}, Body: []byte(body)}
}

type silent struct{ amqp.Acknowledger }

func (silent) Ack(uint64, bool) error { return nil }
func (silent) Close() error           { return nil }
func (silent) IsClosed() bool         { return false }

// customerVersion reads the sender's two headers.
func customerVersion(d amqp.Delivery) (entity string, version int64, err error) {
	customer, _ := d.Headers["customer"].(string)
	version, ok := d.Headers["version"].(int64)
	if !ok {
		return "", 0, fmt.Errorf("version is %v", d.Headers["version"])
	}
	return "customer/" + customer, version, nil
}

// Only the latest of a customer's addresses matters.
func ExampleLatest() {
	db, inbox, closeDB := openShop(context.Background())
	defer closeDB()
	latest, err := versions.NewLatest(inbox, "shipping", customerVersion, &versions.Options{DeadLetterExchange: true})
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range []amqp.Delivery{
		exampleEvent(1, "1 Mill Lane"), exampleEvent(3, "7 High Street"), exampleEvent(2, "4 Park Road"), exampleEvent(3, "7 High Street"),
	} {
		err := latest.Handle(context.Background(), db, d, func(ctx context.Context, tx *sql.Tx) error {
			fmt.Println("moves to", string(d.Body)) // with tx into the table of customers
			return nil
		})
		if err != nil {
			log.Print(err) // the message comes again
		}
	}
	fmt.Println(latest.Stats().Stale, "stale")
	// Output:
	// moves to 1 Mill Lane
	// moves to 7 High Street
	// 2 stale
}

// Each booking on an account builds on the previous one.
func ExampleOrdered() {
	db, inbox, closeDB := openShop(context.Background())
	defer closeDB()
	ordered, err := versions.NewOrdered(inbox, "accounts", customerVersion, &versions.OrderedOptions{Options: versions.Options{DeadLetterExchange: true}})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	book := func(ctx context.Context, tx *sql.Tx, event amqp.Delivery) error {
		fmt.Println("book", string(event.Body)) // with tx
		return nil
	}
	// Run beside the consumers: go ordered.Watch(ctx, db, book)
	for _, d := range []amqp.Delivery{exampleEvent(2, "+30"), exampleEvent(4, "-5"), exampleEvent(1, "+100"), exampleEvent(2, "+30")} {
		if err := ordered.Handle(ctx, db, d, book); err != nil {
			log.Print(err) // the message comes again
		}
	}
	gaps, err := ordered.Gaps(ctx, db, 100)
	if err != nil {
		log.Fatal(err)
	}
	for _, gap := range gaps {
		fmt.Println(gap.Entity, "waits for version", gap.Missing)
	}
	// Output:
	// book +100
	// book +30
	// customer/17 waits for version 3
}

// A meter numbers its readings, and sends the next one when the last has arrived.
func ExampleHighWater() {
	db, inbox, closeDB := openShop(context.Background())
	defer closeDB()
	highWater, err := versions.NewHighWater(inbox, "readings", func(d amqp.Delivery) (source, key string, err error) {
		n, err := strconv.ParseUint(d.MessageId, 10, 64)
		return d.AppId, fmt.Sprintf("%020d", n), err
	}, &versions.Options{DeadLetterExchange: true})
	if err != nil {
		log.Fatal(err)
	}
	for _, id := range []string{"9", "10", "10", "11"} {
		d := amqp.Delivery{Acknowledger: silent{}, AppId: "meter 4", MessageId: id}
		err := highWater.Handle(context.Background(), db, d, func(ctx context.Context, tx *sql.Tx) error {
			fmt.Println("reading", d.MessageId) // with tx
			return nil
		})
		if err != nil {
			log.Print(err) // the channel is closed: open another
		}
	}
	// Output:
	// reading 9
	// reading 10
	// reading 11
}

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
	inbox, err = sqlite.OpenInbox(ctx, db)
	if err != nil {
		log.Fatal(err)
	}
	return db, inbox, func() {
		db.Close()
		os.RemoveAll(dir)
	}
}
