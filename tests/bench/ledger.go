package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"

	"github.com/go-sql-driver/mysql"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	mysqlledger "github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/sender"
)

// ledger is this project, with its defaults. Its relay is the worker's binary.
var ledger = &contender{
	name:  "twoqueue",
	what:  "this project with its defaults, one verifier",
	setUp: setUpLedger,
	open: func(ctx context.Context, p place, db *sql.DB) (application, error) {
		return openLedgerApplication(ctx, p, db)
	},
}

// ledgerEarly stages before the business's work.
var ledgerEarly = &contender{
	name:  "twoqueue-early",
	what:  "the same, but that each transaction stages its messages before its other statements, and waits after them for what is left of the confirm",
	setUp: setUpLedger,
	open: func(ctx context.Context, p place, db *sql.DB) (application, error) {
		a, err := openLedgerApplication(ctx, p, db)
		return &ledgerEarlyApplication{a}, err
	},
}

func openLedgerApplication(ctx context.Context, p place, db *sql.DB) (*ledgerApplication, error) {
	l, err := openLedger(ctx, p, db)
	if err != nil {
		return nil, err
	}
	broker, err := bridge.Dial(ctx, p.AMQP, nil)
	if err != nil {
		return nil, err
	}
	s, err := sender.New(l, broker, &sender.Options{Queue: p.Staging, OrderedShards: p.Shards})
	if err != nil {
		broker.Close()
		return nil, err
	}
	return &ledgerApplication{newBusiness(p, db), s, broker, p.Target, p.Keys}, nil
}

func setUpLedger(ctx context.Context, p place, db *sql.DB) error {
	if err := migrate.Ledger(ctx, db, pick(p.MariaDB, migrate.MySQL, migrate.PostgreSQL)); err != nil {
		return err
	}
	broker, err := bridge.Dial(ctx, p.AMQP, nil)
	if err != nil {
		return err
	}
	defer broker.Close()
	return bridge.Topology{Queue: p.Staging, Classic: p.Classic, OrderedShards: p.Shards}.Declare(ctx, broker)
}

func openLedger(ctx context.Context, p place, db *sql.DB) (driver.Ledger, error) {
	if p.MariaDB {
		return mysqlledger.Open(ctx, db)
	}
	return postgres.Open(ctx, db)
}

type ledgerApplication struct {
	business
	sender *sender.Sender
	broker *bridge.Broker
	target string
	keys   int
}

func (a *ledgerApplication) transact(ctx context.Context, bodies [][]byte, decide func() bool) (instant, error) {
	return a.in(ctx, decide, func(tx *sql.Tx) error {
		_, err := a.sender.SendTx(ctx, bridge.SQL(tx), a.messages(bodies)...)
		return err
	})
}

func (a *ledgerApplication) messages(bodies [][]byte) []bridge.Message {
	messages := make([]bridge.Message, len(bodies))
	for i, body := range bodies {
		messages[i] = bridge.Message{RoutingKey: a.target, Publishing: amqp.Publishing{Body: body}}
		if a.keys > 0 {
			number, _ := numberOf(body)
			messages[i].OrderKey = fmt.Sprint(number % uint64(a.keys))
		}
	}
	return messages
}

func (a *ledgerApplication) close() { a.broker.Close() }

type ledgerEarlyApplication struct{ *ledgerApplication }

func (a *ledgerEarlyApplication) transact(ctx context.Context, bodies [][]byte, decide func() bool) (instant, error) {
	return a.around(ctx, decide, func(tx *sql.Tx) error {
		staged, err := a.sender.StageTx(ctx, bridge.SQL(tx), a.messages(bodies)...)
		if err != nil {
			return err
		}
		if err := a.work(ctx, tx); err != nil {
			return err
		}
		return staged.Wait(ctx)
	})
}

// mariaDBURL turns a DSN of the driver into the form that the worker takes.
func mariaDBURL(dsn string) string {
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		panic(err) // our own
	}
	return (&url.URL{Scheme: "mysql", User: url.User(config.User), Host: config.Addr, Path: "/" + config.DBName}).String()
}
