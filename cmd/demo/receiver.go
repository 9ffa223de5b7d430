package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
)

const receiverPrefetch = 64

// receive 'sends' e-mails until ctx ends, then finishes those that it holds.
func receive(ctx context.Context, w world, dbs *databases, broker *bridge.Broker) error {
	inbox, err := dbs.post.Inbox(ctx)
	if err != nil {
		return err
	}
	guard, err := idempotency.New(inbox, "post", nil)
	if err != nil {
		return err
	}
	conn, err := broker.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Qos(receiverPrefetch, 0, false); err != nil {
		return err
	}
	const tag = "post"
	deliveries, err := ch.Consume(w.Emails, tag, false, false, false, false, nil)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = ch.Cancel(tag, false) })() // closes deliveries
	ready()
	var loops errgroup.Group
	for range w.Loops {
		loops.Go(func() error {
			for d := range deliveries {
				if err := email(context.WithoutCancel(ctx), dbs, guard, d); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := loops.Wait(); err != nil {
		return err
	}
	if ctx.Err() == nil {
		return errors.New("the broker has ended the consumer")
	}
	return nil
}

// email handles one delivery. That it came is noted whatever becomes of it; the
// e-mail is 'sent' by a row that commits with the Guard's claim.
func email(ctx context.Context, dbs *databases, guard *idempotency.Guard, d amqp.Delivery) error {
	err := insert(ctx, dbs.post, `INSERT INTO arrivals (message_id, at) VALUES (?, ?)`, d.MessageId, time.Now().UnixMicro())
	if err != nil {
		return fmt.Errorf("note arrival: %w", err)
	}
	statement := dbs.post.Rebind(`INSERT INTO emails (message_id, body) VALUES (?, ?)`)
	err = guard.Handle(ctx, dbs.post.DB.DB, d, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, statement, d.MessageId, string(d.Body))
		return err
	})
	if err != nil {
		slog.Warn("e-mail not finished", "error", err) // it comes again
	}
	return nil
}
