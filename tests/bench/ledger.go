package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/bridge/pgxbridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/sender/pgxsender"
)

// ledger is this project in its plain form. Its relay is the worker's binary.
var ledger = &contender{
	name:     "twoqueue",
	label:    "twoqueue,\nCarryNever",
	what:     "this project with sender.CarryNever, one verifier: the database holds only IDs, and each commit waits for the broker",
	setUp:    setUpLedger,
	verifier: true,
	open: func(ctx context.Context, p place, b business) (application, error) {
		return openLedgerApplication(ctx, p, b, sender.CarryNever, false)
	},
}

// ledgerEarly stages its messages before the business's work.
var ledgerEarly = &contender{
	name:     "twoqueue-early",
	what:     "the same, but each transaction stages its messages before its other statements, and waits after them for the rest of the confirm",
	setUp:    setUpLedger,
	verifier: true,
	open: func(ctx context.Context, p place, b business) (application, error) {
		return openLedgerApplication(ctx, p, b, sender.CarryNever, true)
	},
}

// ledgerCarried is this project with its defaults: rows carry small messages.
var ledgerCarried = &contender{
	name:     "twoqueue-carried",
	label:    "twoqueue",
	what:     "this project with its defaults, one verifier: rows carry messages of up to 8 KiB, whose commits do not wait for the broker",
	setUp:    setUpLedger,
	verifier: true,
	open: func(ctx context.Context, p place, b business) (application, error) {
		return openLedgerApplication(ctx, p, b, sender.CarrySmall, false)
	},
}

// ledgerAlways carries messages of any size.
var ledgerAlways = &contender{
	name:     "twoqueue-always",
	what:     "this project with sender.CarryAlways, one verifier: rows carry messages of any size",
	setUp:    setUpLedger,
	verifier: true,
	open: func(ctx context.Context, p place, b business) (application, error) {
		return openLedgerApplication(ctx, p, b, sender.CarryAlways, false)
	},
}

// ledgerClassic has a classic staging queue. Every message is in its row, so losing a staged copy
// loses nothing.
var ledgerClassic = &contender{
	name:     "twoqueue-carried-classic",
	what:     "this project with sender.CarryAlways and a classic staging queue (bridge.Topology.Classic), one verifier",
	setUp:    setUpLedger,
	classic:  true,
	verifier: true,
	open:     ledgerAlways.open,
}

func openLedgerApplication(ctx context.Context, p place, b business, carry sender.Carry, early bool) (application, error) {
	var l driver.Recorder
	var err error
	switch {
	case b.pool != nil:
		l, err = pgxbridge.Open(ctx, b.pool)
	case p.MariaDB:
		l, err = mysql.Open(ctx, b.db)
	default:
		l, err = postgres.Open(ctx, b.db)
	}
	if err != nil {
		return nil, err
	}
	broker, err := bridge.Dial(ctx, p.AMQP, nil)
	if err != nil {
		return nil, err
	}
	s, err := sender.New(l, broker, &sender.Options{Queue: p.Staging, OrderedShards: p.Shards, Carry: carry})
	if err != nil {
		broker.Close()
		return nil, err
	}
	return &ledgerApplication{b, s, broker, p.Target, p.Keys, early}, nil
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

type ledgerApplication struct {
	business
	sender *sender.Sender
	broker *bridge.Broker
	target string
	keys   int
	early  bool
}

func (a *ledgerApplication) transact(ctx context.Context, bodies [][]byte, decide func() bool) (instant, error) {
	messages := a.messages(bodies)
	switch {
	case a.pool != nil:
		return a.inPgx(ctx, messages, decide)
	case !a.early:
		return a.in(ctx, decide, func(tx bridge.Tx) error {
			_, err := a.sender.SendTx(ctx, tx, messages...)
			return err
		})
	}
	return a.around(ctx, decide, func(tx bridge.Tx) error {
		staged, err := a.sender.StageTx(ctx, tx, messages...)
		if err != nil {
			return err
		}
		if err := a.work(ctx, tx); err != nil {
			return err
		}
		return staged.Wait(ctx)
	})
}

// inPgx has pgxsender.InTx begin and commit. InTx waits at once for the confirms of messages that
// are staged last.
func (a *ledgerApplication) inPgx(ctx context.Context, messages []bridge.Message, decide func() bool) (instant, error) {
	err := pgxsender.InTx(ctx, a.sender, a.pool, pgx.TxOptions{}, func(tx *pgxsender.Tx) error {
		stage := func() error {
			_, err := tx.Stage(ctx, messages...)
			return err
		}
		work := func() error { return a.work(ctx, tx.BridgeTx()) }
		for _, do := range pick(a.early, []func() error{stage, work}, []func() error{work, stage}) {
			if err := do(); err != nil {
				return err
			}
		}
		if !decide() {
			return errDecidedAgainst
		}
		return nil
	})
	switch {
	case errors.Is(err, errDecidedAgainst):
		return 0, nil
	case err != nil:
		return 0, err
	}
	return now(), nil
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
