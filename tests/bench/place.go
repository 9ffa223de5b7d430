package main

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// A place names the database and queues of one contender. All of the contender's processes receive
// it.
type place struct {
	Contender string
	kind
	Database string // a URL of the form that the worker takes
	AMQP     string
	Staging  string // the staging queue, if the contender has one
	Target   string // the target queue
}

// A kind is a kind of place.
type kind struct {
	MariaDB bool
	Classic bool // the staging queue and the target are classic ones
	Five    bool // transactions have five statements; on PostgreSQL
	Keys    int  // the number of order keys; 0: messages have none
	Shards  int  // number of ordered queues
	Inbox   int  // keys that a receiver has handled before
	Queues  int  // number of further staging queues for a backlog
	Waiting int  // delayed messages in the ledger whose time does not come, for ledgerWaiting
	Orphans int  // rows in the ledger whose messages were forwarded long ago, or never staged
}

// open opens the application's pool, with the same settings for every contender.
func (p place) open(ctx context.Context) (*sql.DB, error) {
	var db *sql.DB
	if p.MariaDB {
		var err error
		if db, err = openMariaDB(p.Database); err != nil {
			return nil, err
		}
	} else {
		config, err := pgx.ParseConfig(p.Database)
		if err != nil {
			return nil, err
		}
		db = stdlib.OpenDB(*config)
	}
	db.SetMaxIdleConns(connections)
	db.SetMaxOpenConns(connections)
	if err := db.PingContext(ctx); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	return db, nil
}

// openPool opens the pool of a contender on pgx.
func (p place) openPool(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(p.Database)
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("open database: %w", err)
	}
	return pool, nil
}

// connections is the limit of an application's pool. It is enough for all transactions that a
// scenario has open at once.
const connections = 1150

// run runs statements one after another.
func run(ctx context.Context, db *sql.DB, statements ...string) error {
	for _, statement := range statements {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("run %q: %w", statement, err)
		}
	}
	return nil
}
