// Command application links the packages of an application with a sender and a receiver, for all
// databases.
package main

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"os"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
)

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, kind, address, brokerURL string) error {
	db, err := sql.Open(kind, address)
	if err != nil {
		return err
	}
	ledger, own, inbox, err := open(ctx, kind, db)
	if err != nil {
		return err
	}
	broker, err := bridge.NewBroker(brokerURL, nil)
	if err != nil {
		return err
	}
	for _, l := range []driver.Ledger{ledger, own} {
		s, err := sender.New(l, broker, nil)
		if err != nil {
			return err
		}
		err = s.InTx(ctx, db, nil, func(tx *sender.Tx) error {
			_, err := tx.Send(bridge.Message{RoutingKey: "emails"})
			return err
		})
		if err != nil {
			return err
		}
	}
	dedup, err := idempotency.New(inbox, "application", nil)
	if err != nil {
		return err
	}
	consumer, err := idempotency.NewConsumer(broker, "emails", func(ctx context.Context, d amqp.Delivery) error {
		return dedup.Handle(ctx, db, d, func(context.Context, *sql.Tx) error { return nil })
	}, nil)
	if err != nil {
		return err
	}
	return consumer.Run(ctx)
}

func open(ctx context.Context, kind string, db *sql.DB) (ledger, own driver.Ledger, inbox driver.Inbox, err error) {
	table := bridge.OwnTable{Table: "orders", Column: "id"}
	var errs [3]error
	switch kind {
	case "postgres":
		ledger, errs[0] = postgres.Open(ctx, db)
		own, errs[1] = postgres.OpenOwnTable(ctx, db, table)
		inbox, errs[2] = postgres.OpenInbox(ctx, db)
	case "mysql":
		ledger, errs[0] = mysql.Open(ctx, db)
		own, errs[1] = mysql.OpenOwnTable(ctx, db, table)
		inbox, errs[2] = mysql.OpenInbox(ctx, db)
	case "sqlserver":
		ledger, errs[0] = sqlserver.Open(ctx, db)
		own, errs[1] = sqlserver.OpenOwnTable(ctx, db, table)
		inbox, errs[2] = sqlserver.OpenInbox(ctx, db)
	case "sqlite":
		ledger, errs[0] = sqlite.Open(ctx, db)
		own, errs[1] = sqlite.OpenOwnTable(ctx, db, table)
		inbox, errs[2] = sqlite.OpenInbox(ctx, db)
	}
	return ledger, own, inbox, errors.Join(errs[:]...)
}
