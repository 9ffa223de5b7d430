package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/compose/servers"
)

// A world has the servers of one run, which all contenders use in turn, and the run's results.
type world struct {
	config
	report   report
	folder   string // for the built binaries
	broker   *servers.RabbitMQ
	postgres *servers.Postgres
	mariadb  *servers.MariaDB // nil until a contender needs it
	verifier string           // the worker's binary
	amqp     *amqp.Connection
	control  *amqp.Channel // declares and deletes queues
	begun    time.Time
	loaded   string // the load average at the beginning
	versions struct{ broker, postgres, mariadb string }
	places   int
	business float64             // the bytes of WAL of a transaction that sends nothing; 0 until measured
	networks map[string]*network // by the server's address
}

func newWorld(ctx context.Context, c config) (w *world, err error) {
	w = &world{config: c, begun: time.Now(), loaded: loadAverage(), networks: make(map[string]*network)}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.folder, err = os.MkdirTemp("", "twoqueue-bench-"); err != nil {
		return w, err
	}
	w.say("building the worker, starting the servers")
	var errs [3]error
	var starting sync.WaitGroup
	starting.Go(func() { w.verifier, errs[0] = buildVerifier(ctx, w.folder) })
	starting.Go(func() {
		w.broker, errs[1] = servers.StartRabbitMQ(ctx, &servers.RabbitMQOptions{Plugins: []string{"rabbitmq_shovel"}, BusyWait: true})
	})
	// The server keeps its default of waiting for the disk, and allows more connections.
	starting.Go(func() {
		w.postgres, errs[2] = servers.StartPostgres(ctx, &servers.PostgresOptions{
			Fast:   c.test,
			Config: []string{fmt.Sprintf("max_connections = %d", connections+100)},
		})
	})
	starting.Wait()
	if err = errors.Join(errs[:]...); err != nil {
		return w, err
	}
	if err = w.connect(); err != nil {
		return w, err
	}
	return w, w.readVersions(ctx)
}

// connect opens the run's own connection to the broker.
func (w *world) connect() (err error) {
	if w.amqp, err = amqp.Dial(w.broker.URL()); err != nil {
		return err
	}
	w.control, err = w.amqp.Channel()
	return err
}

func (w *world) readVersions(ctx context.Context) error {
	version, _ := w.amqp.Properties["version"].(string)
	w.versions.broker = "RabbitMQ " + version
	db, err := sql.Open("pgx", w.postgres.URL())
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.QueryRowContext(ctx, "SHOW server_version").Scan(&version); err != nil {
		return fmt.Errorf("read version: %w", err)
	}
	version, _, _ = strings.Cut(version, " ")
	w.versions.postgres = "PostgreSQL " + version
	return nil
}

func (w *world) close() {
	var err error
	if w.amqp != nil {
		err = w.amqp.Close()
	}
	if w.broker != nil {
		w.broker.Kill() // its data is no longer needed
		err = errors.Join(err, w.broker.Stop())
	}
	for _, n := range w.networks {
		err = errors.Join(err, n.close())
	}
	if w.postgres != nil {
		err = errors.Join(err, w.postgres.Stop())
	}
	if w.mariadb != nil {
		err = errors.Join(err, w.mariadb.Stop())
	}
	if w.folder != "" {
		err = errors.Join(err, os.RemoveAll(w.folder))
	}
	if err != nil {
		w.say("clean up: %v", err)
	}
}

// say logs progress to standard error.
func (w *world) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%4.0fs %s\n", time.Since(w.begun).Seconds(), fmt.Sprintf(format, args...))
}

// newPlace creates a fresh database with the business table and a target queue, and has the
// contender set up its own tables and queues. leave removes them all.
func (w *world) newPlace(ctx context.Context, c *contender, k kind) (p place, db *sql.DB, leave func(), err error) {
	w.places++
	name := fmt.Sprintf("bench%d", w.places)
	p = place{Contender: c.name, kind: k, Staging: name + ".staging", Target: name + ".target"}
	if p.AMQP, err = w.apart(w.broker.URL()); err != nil {
		return p, nil, nil, err
	}
	if k.MariaDB {
		p.Database, err = w.newMariaDB(ctx, name)
	} else {
		p.Database, err = w.postgres.DatabaseURL(name), w.administer(ctx, "CREATE DATABASE "+name)
	}
	if err == nil {
		p.Database, err = w.apart(p.Database)
	}
	if err != nil {
		return p, nil, nil, err
	}
	args := amqp.Table{"x-queue-type": pick(k.Classic, "classic", "quorum")}
	if _, err := w.control.QueueDeclare(p.Target, true, false, false, false, args); err != nil {
		return p, nil, nil, fmt.Errorf("declare target: %w", err)
	}
	p.Classic = k.Classic || c.classic
	if db, err = p.open(ctx); err != nil {
		return p, nil, nil, err
	}
	leave = func() {
		_ = db.Close()
		if err := w.clear(name, k); err != nil {
			w.say("clear %s: %v", name, err)
		}
	}
	err = run(ctx, db, pick(k.MariaDB, createOrdersMariaDB, createOrders))
	if err == nil {
		err = c.setUp(ctx, p, db)
	}
	if err != nil {
		leave()
		return p, nil, nil, fmt.Errorf("set up %s: %w", c.name, err)
	}
	return p, db, leave, nil
}

// apart returns the URL at which a server is reached through the network, or address if there is no
// network.
func (w *world) apart(address string) (string, error) {
	if w.network == 0 {
		return address, nil
	}
	server, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	n := w.networks[server.Host]
	if n == nil {
		if n, err = newNetwork(server.Host, w.network); err != nil {
			return "", err
		}
		w.networks[server.Host] = n
	}
	server.Host = n.address()
	return server.String(), nil
}

// administer runs statements that concern the whole server.
func (w *world) administer(ctx context.Context, statements ...string) error {
	db, err := sql.Open("pgx", w.postgres.URL())
	if err != nil {
		return err
	}
	defer db.Close()
	return run(ctx, db, statements...)
}

// clear removes a place's database and queues, even if the run was interrupted.
func (w *world) clear(name string, k kind) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, queue := range []string{".target", ".staging", ".staging.waiting", ".staging.dead"} {
		if _, err := w.control.QueueDelete(name+queue, false, false, false); err != nil {
			return fmt.Errorf("delete queue: %w", err)
		}
	}
	if k.MariaDB {
		return w.administerMariaDB(ctx, "DROP DATABASE "+name)
	}
	return w.administer(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
}

// settle has the database write a checkpoint, so that the next contender does not pay for the last
// one's writes.
func (w *world) settle(ctx context.Context) error { return w.administer(ctx, "CHECKPOINT") }
