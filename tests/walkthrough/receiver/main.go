// Receiver is the receiver of the walk-through: three consumers, whose messages are made by hand.
// The key of a message is its body.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/cenkalti/backoff/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/pending"
	"github.com/twoqueue/twoqueue/idempotency/versions"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	db, err := sql.Open("pgx", os.Getenv("BRIDGE_DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close()
	inbox, err := postgres.OpenInbox(ctx, db)
	if err != nil {
		return err
	}
	broker, err := bridge.Dial(ctx, os.Getenv("BRIDGE_AMQP_URL"), nil)
	if err != nil {
		return err
	}
	defer broker.Close()
	queues := make(map[string]*idempotency.Queues)
	for _, queue := range []string{"parcels", "customers", "prices"} {
		if queues[queue], err = idempotency.DeclareReceiver(ctx, broker, queue, nil); err != nil {
			return err
		}
	}
	log.Print("the queues are declared") // before that, the broker drops messages for them
	shipping, err := pending.New(inbox, "shipping", &pending.Options{Queues: queues["parcels"],
		Key: func(d amqp.Delivery) (string, error) { return string(d.Body), nil }})
	if err != nil {
		return err
	}
	crm, err := versions.NewOrdered(inbox, "crm", version, &versions.OrderedOptions{Options: versions.Options{Queues: queues["customers"]}})
	if err != nil {
		return err
	}
	search, err := versions.NewLatest(inbox, "search", version, &versions.Options{Queues: queues["prices"]})
	if err != nil {
		return err
	}
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return shipping.Resume(ctx, db, ship) })
	all.Go(func() error { crm.Watch(ctx, db, write); return nil })
	for queue, handle := range map[string]func(ctx context.Context, d amqp.Delivery) error{
		"parcels":   func(ctx context.Context, d amqp.Delivery) error { return shipping.AtMostOnce(ctx, db, d, ship) },
		"customers": func(ctx context.Context, d amqp.Delivery) error { return crm.Handle(ctx, db, d, write) },
		"prices": func(ctx context.Context, d amqp.Delivery) error {
			return search.Handle(ctx, db, d, func(ctx context.Context, tx *sql.Tx) error { return write(ctx, tx, d) })
		},
	} {
		consumer, err := idempotency.NewConsumer(broker, queue, handle, nil)
		if err != nil {
			return err
		}
		all.Go(func() error { return consumer.Run(ctx) })
	}
	return all.Wait()
}

// ship hands a parcel to the carrier. The file carrier says how the carrier answers; without it all
// is well.
func ship(_ context.Context, d amqp.Delivery) error {
	answer, err := os.ReadFile("carrier")
	switch strings.TrimSpace(string(answer)) {
	case "silent":
		return errors.New("no answer from the carrier")
	case "closed":
		return pending.NotDone(backoff.Permanent(errors.New("the carrier has closed our account")))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return pending.NotDone(err)
	}
	log.Printf("%s is shipped", d.Body)
	return nil
}

// version reads a message such as "customer/17 2".
func version(d amqp.Delivery) (entity string, version int64, err error) {
	_, err = fmt.Sscan(string(d.Body), &entity, &version)
	return entity, version, err
}

func write(_ context.Context, _ *sql.Tx, d amqp.Delivery) error {
	log.Printf("%s is written", d.Body)
	return nil
}
