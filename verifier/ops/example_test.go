package ops_test

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/verifier"
	"github.com/twoqueue/twoqueue/verifier/ops"
)

// A service that runs a verifier, with /verifier/livez, /verifier/readyz, /verifier/metrics and the
// page /verifier/status/.
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

	inspector := postgres.Inspect(ledger) // reports the open transactions and the delayed messages
	options := &verifier.Options{Allow: []verifier.Allow{{RoutingKey: "emails"}}, Watcher: inspector}
	monitor, err := ops.New(options, nil)
	if err != nil {
		log.Fatal(err)
	}
	options.Observer = monitor
	db.SetMaxIdleConns(options.Connections() + ops.Connections)
	v, err := verifier.New(ledger, broker, options)
	if err != nil {
		log.Fatal(err)
	}
	watching, stopWatching := context.WithCancel(context.Background()) // also while the verifier drains
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		monitor.Run(watching, v, ledger, inspector, inspector)
	}()

	mux := http.NewServeMux()
	mux.Handle("/verifier/", http.StripPrefix("/verifier", monitor.Probes(nil)))
	mux.Handle("/verifier/status/", http.StripPrefix("/verifier/status", monitor.Status()))
	server := &http.Server{Addr: "localhost:8081", Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			log.Print(err) // the verifier goes on
		}
	}()

	err = v.Run(ctx)
	_ = server.Close()
	stopWatching()
	<-watched
	if err != nil {
		log.Fatal(err) // it could not start, or not drain
	}
}
