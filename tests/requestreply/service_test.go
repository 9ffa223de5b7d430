package requestreply_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

const briefVariable = "REQUEST_REPLY_TEST_BRIEF"

// A brief tells a service who it is, on what it works, and where it stops to be
// killed.
type brief struct {
	Service     string // shop or bank
	DatabaseURL string
	AMQP        string
	Topology    bridge.Topology
	Orders      int // how many the shop places
	Stop        point
}

type point string

const (
	requestStaged    point = "the shop has staged a request and not committed"
	requestCommitted point = "the shop has committed an order"
	requestTaken     point = "the bank has paid and not replied"
	replyStaged      point = "the bank has staged a reply and not committed"
	replyCommitted   point = "the bank has committed and not acked"
	requestAcked     point = "the bank has acked"
	replyTaken       point = "the shop has noted the receipt and not committed"
	receiptCommitted point = "the shop has committed the receipt and not acked"
	receiptAcked     point = "the shop has acked"
)

// The queues of the two services.
const (
	requests = "requests"
	replies  = "replies"
)

// Tables in which what is done twice shows.
const (
	shopTables = `CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE receipts (id int, body text)`
	bankTables = `CREATE TABLE payments (id int)`
)

// stoppable is what a service says once SIGTERM stops it in good order.
const stoppable = "SIGTERM stops this service"

// A service is a process.
type service struct {
	brief
	db     *sql.DB
	sender *sender.Sender
	guard  *idempotency.Guard
}

func serve(text string) {
	var s service
	err := json.Unmarshal([]byte(text), &s.brief)
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		fmt.Fprintln(os.Stderr, stoppable)
		if err = s.run(ctx); ctx.Err() != nil {
			err = nil // what it was at has been cut short
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "service ends:", err)
		os.Exit(1)
	}
}

// run does the service's work until the process is killed; or until ctx ends, and then
// finishes what it has begun.
func (s *service) run(ctx context.Context) error {
	var ledger driver.Ledger
	var err error
	if s.db, ledger, err = stage.Postgres.Open(ctx, s.DatabaseURL); err != nil {
		return err
	}
	inbox, err := postgres.OpenInbox(ctx, s.db)
	if err != nil {
		return err
	}
	if s.guard, err = idempotency.New(inbox, s.Service, &idempotency.Options{HandBack: true}); err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	broker, err := bridge.Dial(ctx, s.AMQP, &bridge.BrokerOptions{DialTimeout: stage.Patience, Logger: logger})
	if err != nil {
		return err
	}
	if s.sender, err = sender.New(ledger, broker, &sender.Options{Queue: s.Topology.Queue, Timeout: stage.Patience}); err != nil {
		return err
	}
	worker, err := verifier.New(ledger, broker, &verifier.Options{Topology: s.Topology, Logger: logger})
	if err != nil {
		return err
	}
	parts := []func(context.Context) error{worker.Run}
	if s.Service == "shop" {
		parts = append(parts, s.placeOrders, func(ctx context.Context) error {
			return s.consume(ctx, replies, s.receive, receiptCommitted, receiptAcked)
		})
	} else {
		parts = append(parts, func(ctx context.Context) error {
			return s.consume(ctx, requests, s.pay, replyCommitted, requestAcked)
		})
	}
	ended := make(chan error, len(parts))
	for _, part := range parts {
		go func() { ended <- part(ctx) }()
	}
	for range parts {
		if err := <-ended; err != nil || ctx.Err() == nil {
			return fmt.Errorf("a part has ended: %w", err)
		}
	}
	return nil
}

// placeOrders places the orders that have not been placed yet, each with its request.
func (s *service) placeOrders(ctx context.Context) error {
	for id := range s.Orders {
		if err := s.placeOrder(ctx, id); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

func (s *service) placeOrder(ctx context.Context, id int) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	result, err := tx.ExecContext(ctx, `INSERT INTO orders VALUES ($1) ON CONFLICT DO NOTHING`, id)
	if err != nil {
		return err
	}
	if placed, err := result.RowsAffected(); err != nil || placed == 0 {
		return err // before the last kill
	}
	_, err = s.sender.SendTx(ctx, bridge.SQL(tx), bridge.Message{RoutingKey: requests, Publishing: amqp.Publishing{
		CorrelationId: strconv.Itoa(id), ReplyTo: replies, Body: []byte("please pay")}})
	if err != nil {
		return err
	}
	s.stop(requestStaged)
	if err := tx.Commit(); err != nil {
		return err
	}
	s.stop(requestCommitted)
	return nil
}

// pay handles a request.
func (s *service) pay(ctx context.Context, tx *sql.Tx, request amqp.Delivery) error {
	if _, err := tx.ExecContext(ctx, `INSERT INTO payments VALUES ($1::int)`, request.CorrelationId); err != nil {
		return err
	}
	s.stop(requestTaken)
	reply, err := idempotency.Reply(request, amqp.Publishing{Body: []byte("paid")})
	if err != nil {
		return err
	}
	if _, err := s.sender.SendTx(ctx, bridge.SQL(tx), reply); err != nil {
		return err
	}
	s.stop(replyStaged)
	return nil
}

// receive handles a reply.
func (s *service) receive(ctx context.Context, tx *sql.Tx, reply amqp.Delivery) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO receipts VALUES ($1::int, $2::text)`, reply.CorrelationId, string(reply.Body))
	s.stop(replyTaken)
	return err
}

// consume handles what is in a queue, and stops before or after an ack.
func (s *service) consume(ctx context.Context, queue string, handle func(context.Context, *sql.Tx, amqp.Delivery) error, before, after point) error {
	conn, err := amqp.Dial(s.AMQP)
	if err != nil {
		return err
	}
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := channel.Qos(10, 0, false); err != nil {
		return err
	}
	deliveries, err := channel.Consume(queue, queue, false, false, false, false, nil)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = channel.Cancel(queue, false) })() // closes deliveries
	handling := context.WithoutCancel(ctx)
	for d := range deliveries {
		d.Acknowledger = &stopping{channel, s, before, after}
		err := s.guard.Handle(handling, s.db, d, func(ctx context.Context, tx *sql.Tx) error { return handle(ctx, tx, d) })
		if err != nil {
			slog.Warn("comes again", "error", err)
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return errors.New("the channel is closed")
}

// stopping is a channel that stops before or after its acks.
type stopping struct {
	amqp.Acknowledger
	service       *service
	before, after point
}

func (s *stopping) Ack(tag uint64, multiple bool) error {
	s.service.stop(s.before)
	defer s.service.stop(s.after)
	return s.Acknowledger.Ack(tag, multiple)
}

// stop stops here, if it shall, to be killed.
func (s *service) stop(at point) {
	if at == s.Stop {
		fmt.Println(at)
		select {}
	}
}
