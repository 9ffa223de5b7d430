package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
)

// An email is a message to the e-mail gateway: see email-gateway schema.
type email struct {
	From    string   `json:"from"`
	To      []string `json:"to"`
	Subject string   `json:"subject"`
	Text    string   `json:"text"`
}

// shop is one process that places orders.
type shop struct {
	part
	dbs    *databases
	sender *sender.Sender
}

// keepShop places the baskets that its killed predecessors have not tried.
func keepShop(ctx context.Context, p part, dbs *databases, broker *bridge.Broker) error {
	ledger, err := dbs.shop.Ledger(ctx)
	if err != nil {
		return err
	}
	s := &shop{part: p, dbs: dbs}
	if s.sender, err = sender.New(ledger, broker, &sender.Options{Queue: p.World.Queue}); err != nil {
		return err
	}
	tried, err := dbs.tried(ctx, p.Worker)
	if err != nil {
		return err
	}
	ready()
	baskets := p.World.Plan.baskets(p.Worker)
	for number := tried; number < len(baskets); number++ {
		if err := s.place(ctx, number, baskets[number]); err != nil {
			return err
		}
		time.Sleep(p.World.Plan.pause(baskets[number]))
	}
	if err := s.sender.Flush(ctx); err != nil {
		slog.Warn("e-mails not confirmed; verifiers stage them from their rows", "error", err)
	}
	return nil
}

// place places the orders of one basket, each with its e-mail. A transaction that fails is rolled back
// and logged; place returns only errors of the diary.
func (s *shop) place(ctx context.Context, number int, b basket) error {
	ids := make([]uuid.UUID, b.Orders)
	for i := range ids {
		ids[i] = uuid.Must(uuid.NewV7())
	}
	if err := s.dbs.noteBegin(ctx, s.Worker, number, ids); err != nil {
		return err
	}
	began, ended, err := s.transact(ctx, number, b, ids)
	if err != nil {
		slog.Warn("orders not placed", "error", err)
		return nil
	}
	return s.dbs.noteEnd(ctx, s.Worker, number, began, ended)
}

// transact runs the shop's transaction, and returns the times at which it began and ended.
func (s *shop) transact(ctx context.Context, number int, b basket, ids []uuid.UUID) (began, ended time.Time, err error) {
	tx, err := s.dbs.shop.BeginTx(ctx, nil)
	if err != nil {
		return began, ended, err
	}
	defer func() { _ = tx.Rollback() }() // without effect after a commit
	began = time.Now()
	if err := s.order(ctx, tx, number, ids); err != nil {
		return began, ended, err
	}
	time.Sleep(b.Hold)
	switch b.End {
	case rollsBack:
		err = tx.Rollback()
	case diesUncommitted:
		die()
	case diesCommitted:
		if err = tx.Commit(); err == nil {
			die()
		}
	default:
		err = tx.Commit()
	}
	return began, time.Now(), err
}

func (s *shop) order(ctx context.Context, tx *sql.Tx, number int, ids []uuid.UUID) error {
	statement := s.dbs.shop.Rebind(`INSERT INTO orders (message_id, worker, number) VALUES (?, ?, ?)`)
	emails := make([]bridge.Message, len(ids))
	for i, id := range ids {
		if _, err := tx.ExecContext(ctx, statement, id.String(), s.Worker, number); err != nil {
			return err
		}
		body, err := json.Marshal(email{
			From: "Shop <shop@example.org>", To: []string{"customer@example.org"}, Subject: "Your order",
			Text: fmt.Sprintf("Thank you for order %d of basket %d-%d.", i+1, s.Worker+1, number+1),
		})
		if err != nil {
			return err
		}
		emails[i] = bridge.Message{
			ID:         id,
			Exchange:   s.World.Emails,
			RoutingKey: emailKey,
			Publishing: amqp.Publishing{ContentType: "application/json", Body: body},
		}
	}
	_, err := s.sender.SendTx(ctx, bridge.SQL(tx), emails...)
	return err
}

// die kills the process (SIGKILL), like a crash.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
