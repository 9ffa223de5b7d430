package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/probes"
	"github.com/twoqueue/twoqueue/cmd/internal/advice"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/endpoints"
	"github.com/twoqueue/twoqueue/cmd/internal/environment"
	"github.com/twoqueue/twoqueue/cmd/internal/transit"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/sender/metrics"
)

//go:embed sql
var tables embed.FS

// part is the name of these migrations.
const part = "shop"

// An email is a message to the e-mail gateway: see email-gateway schema.
type email struct {
	From    string   `json:"from"`
	To      []string `json:"to"`
	Subject string   `json:"subject"`
	Text    string   `json:"text"`
}

type shop struct {
	config *config
	log    *slog.Logger
	db     *database.Database
	sender *sender.Sender
}

// keep places orders until ctx ends, then flushes the sender.
func keep(ctx context.Context, c *config, log *slog.Logger) error {
	transit.Warn(log, prefix, c.Database.URL, c.AMQP.URL)
	_, brokerURL := c.secrets()
	db, err := openDatabase(ctx, c)
	if err != nil {
		return err
	}
	defer db.Close()
	ledger, err := db.Ledger(ctx)
	if err != nil {
		return err
	}
	broker, err := bridge.Dial(ctx, c.AMQP.URL, &bridge.BrokerOptions{Name: part, Logger: log, URL: brokerURL.Again()})
	if err != nil {
		return err
	}
	defer broker.Close()
	s := &shop{config: c, log: log, db: db}
	if s.sender, err = sender.New(ledger, broker, &sender.Options{Queue: c.Queue, Exchange: c.Exchange, Logger: log}); err != nil {
		return err
	}
	server, err := s.answer(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	log.Info("the shop is open", "every", c.Every.Duration())
	err = s.serve(ctx)
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if late := s.sender.Flush(ctx); late != nil {
		log.Warn("e-mails not confirmed; verifiers stage them from their rows", "error", late)
	}
	return err
}

// answer starts the endpoints. The server is nil if SHOP_HTTP_ADDR is none.
func (s *shop) answer(ctx context.Context) (*endpoints.Server, error) {
	if s.config.HTTP.Addr == environment.None {
		return nil, nil
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.New(s.sender), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	answers := probes.Probes{Ready: s.ready, Metrics: registry}
	server, err := endpoints.Listen(context.WithoutCancel(ctx), string(s.config.HTTP.Addr), answers.Handler(), s.log)
	if err == nil {
		s.log.Info("endpoints", "address", server.Address())
	}
	return server, err
}

// ready returns an error if no order can be placed. It does not check the broker: the ledger carries
// the messages during an outage.
func (s *shop) ready(ctx context.Context) error {
	if s.db.PingContext(ctx) != nil {
		return errors.New("database not reachable")
	}
	return nil
}

// flushTimeout bounds the wait for the broker's confirms when the shop stops.
const flushTimeout = 5 * time.Second

// openDatabase opens the shop's database, with a connection for each open transaction.
func openDatabase(ctx context.Context, c *config) (*database.Database, error) {
	url, _ := c.secrets()
	db, err := c.Schema.OpenAnew(ctx, url.Reader())
	if err == nil {
		db.Limit(int(c.Open))
	}
	return db, err
}

// makeTable makes the shop's own table.
func makeTable(ctx context.Context, c *config, stdout, stderr io.Writer) error {
	db, err := c.Schema.Await(ctx, c.Database.URL, advice.Waiting(stderr, "shop", "SHOP_DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.MigrateTables(ctx, tables, part); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "the table is there")
	return nil
}

// serve places orders until ctx ends.
func (s *shop) serve(ctx context.Context) error {
	var open errgroup.Group
	open.SetLimit(int(s.config.Open))
	defer func() { _ = open.Wait() }()
	every := time.NewTicker(s.config.Every.Duration())
	defer every.Stop()
	for number := 1; ; number++ {
		open.Go(func() error {
			s.report(ctx, number, s.place(ctx, number))
			return nil
		})
		select {
		case <-every.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// errRefused is a business reason to roll back.
var errRefused = errors.New("the customer's card is refused")

// place places one order: the order and its e-mail, or neither.
func (s *shop) place(ctx context.Context, number int) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // without effect after a commit

	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, s.db.Rebind(`INSERT INTO orders (id, placed_at) VALUES (?, ?)`), id.String(), time.Now().UTC())
	if err != nil {
		return err
	}
	body, err := json.Marshal(email{
		From: "Shop <shop@example.org>", To: []string{"customer@example.org"}, Subject: "Your order",
		Text: fmt.Sprintf("Thank you for order %s.", id),
	})
	if err != nil {
		return err
	}
	_, err = s.sender.SendTx(ctx, bridge.SQL(tx), bridge.Message{
		RoutingKey: s.config.Emails,
		Publishing: amqp.Publishing{ContentType: "application/json", Body: body},
	})
	if err != nil {
		return err
	}
	if number%int(s.config.Slow) == 0 {
		select { // meanwhile the verifier waits for this transaction's end
		case <-time.After(s.config.Hold.Duration()):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if number%int(s.config.RollBack) == 0 {
		return errRefused
	}
	return tx.Commit()
}

// report logs the result of an order. An error does not end the shop, since servers come back.
func (s *shop) report(ctx context.Context, number int, err error) {
	switch {
	case err == nil:
		s.log.Debug("order placed", "number", number)
	case errors.Is(err, errRefused) || ctx.Err() != nil:
		s.log.Debug("order rolled back", "number", number, "reason", err)
	default:
		s.log.Warn("order not placed", "number", number, "error", err)
	}
}
