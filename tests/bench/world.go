package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/tests/servers"
)

// A world has the servers of one run, which all contenders use in turn, and what
// was found out on them.
type world struct {
	config
	report   report
	folder   string // for what is built
	broker   *servers.RabbitMQ
	postgres *servers.Postgres
	mariadb  *servers.MariaDB // nil until somebody asks
	verifier string           // the worker's binary
	amqp     *amqp.Connection
	control  *amqp.Channel // declares and deletes queues
	begun    time.Time
	versions struct{ broker, postgres string }
	places   int
	networks map[string]*network // by what is behind them
}

func newWorld(ctx context.Context, c config) (w *world, err error) {
	w = &world{config: c, begun: time.Now(), networks: make(map[string]*network)}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.folder, err = os.MkdirTemp("", "twoqueue-bench-"); err != nil {
		return w, err
	}
	w.say("building the worker, starting the servers")
	if w.verifier, err = buildVerifier(ctx, w.folder, c.profile); err != nil {
		return w, err
	}
	if w.broker, err = servers.StartRabbitMQ(ctx, &servers.RabbitMQOptions{Plugins: []string{"rabbitmq_shovel"}, BusyWait: true}); err != nil {
		return w, err
	}
	// The server waits for the disk, as it comes; only the connections are more.
	w.postgres, err = servers.StartPostgres(ctx, &servers.PostgresOptions{
		Config: []string{fmt.Sprintf("max_connections = %d", connections+100)},
	})
	if err != nil {
		return w, err
	}
	if w.amqp, err = amqp.Dial(w.broker.URL()); err != nil {
		return w, err
	}
	if w.control, err = w.amqp.Channel(); err != nil {
		return w, err
	}
	return w, w.readVersions(ctx)
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

// mariaDB starts the MariaDB when it is first needed.
func (w *world) mariaDB(ctx context.Context) (*servers.MariaDB, error) {
	if w.mariadb != nil {
		return w.mariadb, nil
	}
	var err error
	w.mariadb, err = servers.StartMariaDB(ctx, &servers.MariaDBOptions{
		Config: []string{fmt.Sprintf("max-connections=%d", connections+100)},
	})
	return w.mariadb, err
}

func (w *world) close() {
	var err error
	if w.amqp != nil {
		err = w.amqp.Close()
	}
	if w.broker != nil {
		w.broker.Kill() // nobody needs its data
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

// say tells whoever watches.
func (w *world) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%4.0fs %s\n", time.Since(w.begun).Seconds(), fmt.Sprintf(format, args...))
}

// A kind of place: which database, and which kind of queues.
type kind struct {
	onMariaDB bool
	classic   bool
	five      bool
	keys      int // order keys
	shards    int // ordered queues
	inbox     int // keys that a receiver has handled before
}

// newPlace makes a fresh database with the business table and a target queue, and
// has the contender set up what it needs. leave takes all of it away.
func (w *world) newPlace(ctx context.Context, c *contender, k kind) (p place, db *sql.DB, leave func(), err error) {
	w.places++
	name := fmt.Sprintf("bench%d", w.places)
	p = place{Contender: c.name, MariaDB: k.onMariaDB, Classic: k.classic, Five: k.five, Keys: k.keys, Shards: k.shards, Inbox: k.inbox,
		Staging: name + ".staging", Target: name + ".target"}
	if p.AMQP, err = w.apart(w.broker.URL()); err != nil {
		return p, nil, nil, err
	}
	if p.Database, err = w.newDatabase(ctx, name, k.onMariaDB); err != nil {
		return p, nil, nil, err
	}
	args := amqp.Table{"x-queue-type": pick(k.classic, "classic", "quorum")}
	if _, err := w.control.QueueDeclare(p.Target, true, false, false, false, args); err != nil {
		return p, nil, nil, fmt.Errorf("declare target: %w", err)
	}
	if db, err = p.open(ctx); err != nil {
		return p, nil, nil, err
	}
	leave = func() {
		_ = db.Close()
		if err := w.clear(name, k.onMariaDB); err != nil {
			w.say("clear %s: %v", name, err)
		}
	}
	err = run(ctx, db, pick(k.onMariaDB, createOrdersMariaDB, createOrders))
	if err == nil {
		err = c.setUp(ctx, p, db)
	}
	if err != nil {
		leave()
		return p, nil, nil, fmt.Errorf("set up %s: %w", c.name, err)
	}
	return p, db, leave, nil
}

func (w *world) newDatabase(ctx context.Context, name string, onMariaDB bool) (string, error) {
	if onMariaDB {
		server, err := w.mariaDB(ctx)
		if err != nil {
			return "", err
		}
		return server.DatabaseDSN(name), w.administer(ctx, onMariaDB, "CREATE DATABASE "+name)
	}
	if err := w.administer(ctx, onMariaDB, "CREATE DATABASE "+name); err != nil {
		return "", err
	}
	return w.apart(w.postgres.DatabaseURL(name))
}

// apart is the URL that leads to a server through the network, if there is to be one.
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

// administer runs a statement for the server as a whole.
func (w *world) administer(ctx context.Context, onMariaDB bool, statements ...string) error {
	driver, address := "pgx", w.postgres.URL()
	if onMariaDB {
		driver, address = "mysql", w.mariadb.DSN()
	}
	db, err := sql.Open(driver, address)
	if err != nil {
		return err
	}
	defer db.Close()
	return run(ctx, db, statements...)
}

// clear removes a place's database and queues, also after the run was broken off.
func (w *world) clear(name string, onMariaDB bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, queue := range []string{".target", ".staging", ".staging.waiting", ".staging.dead"} {
		if _, err := w.control.QueueDelete(name+queue, false, false, false); err != nil {
			return fmt.Errorf("delete queue: %w", err)
		}
	}
	drop := "DROP DATABASE " + name
	if !onMariaDB {
		drop += " WITH (FORCE)"
	}
	return w.administer(ctx, onMariaDB, drop)
}

// settle lets the database write out what the last contender has left to it, so
// that the next one does not pay for it.
func (w *world) settle(ctx context.Context) error { return w.administer(ctx, false, "CHECKPOINT") }

// chosen are those of a scenario's contenders that the command line leaves.
func (w *world) chosen(all ...*contender) []*contender {
	var left []*contender
	for _, c := range all {
		if w.only.MatchString(c.name) {
			left = append(left, c)
		}
	}
	return left
}

// few are the points at which a contender is measured that matters less: one of
// them, unless more were asked for.
func (w *world) few(asked numbers, points []int, one int) []int {
	if w.long || len(asked) > 0 {
		return points
	}
	return []int{one}
}
