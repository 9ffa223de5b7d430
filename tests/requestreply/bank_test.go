package requestreply_test

import (
	"context"
	"database/sql"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/stage"
)

const briefVariable = "REQUEST_REPLY_TEST_BRIEF"

// brief says on which servers the bank works, and where it stops to be killed.
type brief struct {
	DatabaseURL string
	AMQP        string
	Topology    bridge.Topology
	Stop        point
}

type point string

const (
	paid           point = "the bank has paid and not replied"
	replyStaged    point = "the bank has staged a reply and not committed"
	replyCommitted point = "the bank has committed and not acked"
	requestAcked   point = "the bank has acked"
)

const (
	requests = "requests"
	replies  = "replies"
)

// run answers requests until the process is killed.
func (b *brief) run(ctx context.Context) error {
	db, ledger, err := stage.Postgres.Open(ctx, b.DatabaseURL)
	if err != nil {
		return err
	}
	inbox, err := postgres.OpenInbox(ctx, db)
	if err != nil {
		return err
	}
	guard, err := idempotency.New(inbox, "bank", &idempotency.Options{HandBack: true})
	if err != nil {
		return err
	}
	broker, err := bridge.Dial(ctx, b.AMQP, &bridge.BrokerOptions{DialTimeout: stage.Patience})
	if err != nil {
		return err
	}
	sends, err := sender.New(ledger, broker, &sender.Options{Queue: b.Topology.Queue, Timeout: stage.Patience})
	if err != nil {
		return err
	}
	consumer, err := idempotency.NewConsumer(broker, requests, func(ctx context.Context, d amqp.Delivery) error {
		d.Acknowledger = &stopping{d.Acknowledger, b}
		return guard.Handle(ctx, db, d, func(ctx context.Context, tx *sql.Tx) error { return b.pay(ctx, tx, sends, d) })
	}, nil)
	if err != nil {
		return err
	}
	return consumer.Run(ctx)
}

// pay handles a request.
func (b *brief) pay(ctx context.Context, tx *sql.Tx, sends *sender.Sender, request amqp.Delivery) error {
	if _, err := tx.ExecContext(ctx, `INSERT INTO payments VALUES ($1)`, request.CorrelationId); err != nil {
		return err
	}
	b.stop(paid)
	reply, err := idempotency.Reply(request, amqp.Publishing{Body: []byte("paid")})
	if err != nil {
		return err
	}
	_, err = sends.SendTx(ctx, bridge.SQL(tx), reply)
	b.stop(replyStaged)
	return err
}

// stopping is an acknowledger that stops before or after its acks.
type stopping struct {
	amqp.Acknowledger
	bank *brief
}

func (s *stopping) Ack(tag uint64, multiple bool) error {
	s.bank.stop(replyCommitted)
	defer s.bank.stop(requestAcked)
	return s.Acknowledger.Ack(tag, multiple)
}

// stop stops at the bank's point, to be killed.
func (b *brief) stop(at point) {
	if at == b.Stop {
		fmt.Println(at)
		select {}
	}
}
