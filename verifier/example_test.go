package verifier_test

import (
	"context"
	"database/sql"
	"log"
	"os"
	"os/signal"
	"syscall"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/verifier"
)

// A verifier in your own program; package ops adds metrics and a status page. It makes the tables,
// and Run makes the queues. It stops on SIGTERM, after it has forwarded the messages that it had
// judged.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	db, err := sql.Open("pgx", "postgres://shop:secret@localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if err := migrate.Ledger(ctx, db, migrate.PostgreSQL); err != nil {
		log.Fatal(err)
	}
	ledger, err := postgres.Open(ctx, db)
	if err != nil {
		log.Fatal(err)
	}
	broker, err := bridge.Dial(ctx, "amqp://shop:secret@localhost/", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()
	options := &verifier.Options{Allow: shopsTargets, Watcher: postgres.Inspect(ledger)}
	db.SetMaxIdleConns(options.Connections())
	v, err := verifier.New(ledger, broker, options)
	if err != nil {
		log.Fatal(err)
	}
	if err := v.Run(ctx); err != nil {
		log.Fatal(err) // it could not start, or not drain; failures in between are logged and do not end it
	}
}

// Committed messages for any other target go to the dead queue.
var shopsTargets = []verifier.Allow{
	{RoutingKey: "emails"}, // the queue of this name
	{Exchange: "orders", RoutingKey: "order.*"},
}
