package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/variables"
)

// An app has the state that all commands share: the configuration, the output, and the
// servers. It contacts a server when a command first uses it. One goroutine at a time may use
// the database and the ledger, and one the broker and its management API.
type app struct {
	stdout  io.Writer
	format  outputFormat
	queue   string // the flag: overrides the variable
	config  config // from the environment, before a command runs
	running bool   // a command has begun: its errors are not misuse

	mu     sync.Mutex // for opened.database and opened.inbox, which answered reads
	opened struct {   // the servers that the command has used; the others are nil
		database   *database.Database
		inbox      *inboxDatabase
		ledger     *database.Ledger
		broker     *bridge.Broker
		management *management
	}
}

// begin reads the environment, before a command runs.
func (a *app) begin(offline bool) error {
	c, err := load(offline)
	if err != nil {
		return err
	}
	if a.queue != "" {
		if err := variables.CheckQueue("--queue", a.queue); err != nil {
			return &misuse{err}
		}
		c.Queue = a.queue
	}
	a.config, a.running = c, true
	return nil
}

// topology returns the configured staging queue with the queues beside it.
func (a *app) topology() bridge.Topology { return a.config.Topology() }

// databaseURL returns the URL of the ledger's database, or a misuse if none is set.
func (a *app) databaseURL() (string, error) {
	if a.config.Database.URL == "" {
		return "", misused("BRIDGE_DATABASE_URL: is not set; name the database that holds the ledger, or a file with BRIDGE_DATABASE_URL_FILE")
	}
	return a.config.Database.URL, nil
}

// database opens the ledger's database, once. It changes nothing there.
func (a *app) database(ctx context.Context) (*database.Database, error) {
	if a.opened.database != nil {
		return a.opened.database, nil
	}
	url, err := a.databaseURL()
	if err != nil {
		return nil, err
	}
	db, err := a.config.Schema.Open(ctx, url)
	if err != nil {
		return nil, about("BRIDGE_DATABASE_URL", err)
	}
	a.mu.Lock()
	a.opened.database = db
	a.mu.Unlock()
	return db, nil
}

// databases returns the databases that were opened.
func (a *app) databases() (all []*database.Database) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.opened.database != nil {
		all = append(all, a.opened.database)
	}
	if a.opened.inbox != nil {
		all = append(all, a.opened.inbox.Database)
	}
	return all
}

// answered calls ask, and ends its context if a locked table keeps a database from answering.
func (a *app) answered(ctx context.Context, ask func(ctx context.Context) error) error {
	return database.Answering(ctx, a.databases, ask)
}

// ledger opens the ledger in the database, or on the application's own table, once.
func (a *app) ledger(ctx context.Context) (*database.Ledger, error) {
	if a.opened.ledger != nil {
		return a.opened.ledger, nil
	}
	db, err := a.database(ctx)
	if err != nil {
		return nil, err
	}
	ledger, err := db.LedgerOn(ctx, a.config.OwnTable, a.config.OwnTableCanary)
	switch {
	case errors.Is(err, database.ErrOwnTable):
		return nil, about("BRIDGE_OWN_TABLE", err)
	case err != nil:
		return nil, about("BRIDGE_DATABASE_URL", err)
	}
	a.opened.ledger = ledger
	return ledger, nil
}

// broker dials the broker, once. Dial makes and closes a first connection, which checks the
// address and the login.
func (a *app) broker(ctx context.Context) (*bridge.Broker, error) {
	if a.opened.broker != nil {
		return a.opened.broker, nil
	}
	if a.config.AMQP.URL == "" {
		return nil, misused("BRIDGE_AMQP_URL: is not set; name the broker, or a file with BRIDGE_AMQP_URL_FILE")
	}
	// Every failure reaches the command as an error. Log lines would mix with its output.
	broker, err := bridge.Dial(ctx, a.config.AMQP.URL, &bridge.BrokerOptions{Name: "bridgectl", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, about("BRIDGE_AMQP_URL", err)
	}
	a.opened.broker = broker
	return broker, nil
}

// connect opens a connection to the broker.
func (a *app) connect(ctx context.Context) (*bridge.Connection, error) {
	broker, err := a.broker(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := broker.Connect(ctx)
	if err != nil {
		return nil, about("BRIDGE_AMQP_URL", err)
	}
	return conn, nil
}

// management returns a client of the broker's management API; nil without an error if
// BRIDGE_MANAGEMENT_URL is not set. It sends nothing yet.
func (a *app) management() (*management, error) {
	if a.config.Management.URL == "" {
		return nil, nil
	}
	m, err := newManagement(a.config.Management.URL, a.config.AMQP.URL)
	if err != nil {
		return nil, &misuse{about("BRIDGE_MANAGEMENT_URL", err)}
	}
	a.opened.management = m
	return m, nil
}

// close closes the servers that were opened.
func (a *app) close() {
	if a.opened.management != nil {
		a.opened.management.close()
	}
	if a.opened.broker != nil {
		a.opened.broker.Close()
	}
	if a.opened.database != nil {
		_ = a.opened.database.Close()
	}
	if a.opened.inbox != nil {
		_ = a.opened.inbox.Close()
	}
}
