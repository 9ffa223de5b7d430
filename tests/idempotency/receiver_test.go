package idempotency_test

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/pgxbridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/pending"
	"github.com/twoqueue/twoqueue/idempotency/pgxreceiver"
	"github.com/twoqueue/twoqueue/idempotency/versions"
)

// effect stores the order that a message's body names, and may fail.
type effect func(ctx context.Context, tx bridge.Tx, id string) error

// receiver handles deliveries by one of the strategies. A message's body is its entity and its
// version or key, separated by a colon.
type receiver struct {
	handle func(ctx context.Context, d amqp.Delivery, effect effect) error
	batch  func(ctx context.Context, ds []amqp.Delivery, effect effect) error // handles several at once; may be nil
	beside func(ctx context.Context, effect effect) error                     // works on the messages that handle has kept, until ctx ends
	left   func(ctx context.Context) (bool, error)                            // reports whether a message is kept
}

// receiver returns a receiver that uses a strategy.
func (db *database) receiver(strategy string, inbox driver.Inbox, opts versions.Options) (*receiver, error) {
	opts.HandBack = !opts.DeadLetterExchange
	keyed := idempotency.Options{Attempts: opts.Attempts, MinDelay: opts.MinDelay, MaxDelay: opts.MaxDelay,
		DeadLetterExchange: opts.DeadLetterExchange, HandBack: opts.HandBack, Logger: opts.Logger}
	r := new(receiver)
	handles := func(handle func(context.Context, *sql.DB, amqp.Delivery, func(context.Context, *sql.Tx) error) error) {
		r.handle = func(ctx context.Context, d amqp.Delivery, effect effect) error {
			return handle(ctx, db.DB, d, func(ctx context.Context, tx *sql.Tx) error { return effect(ctx, bridge.SQL(tx), string(d.Body)) })
		}
	}
	switch strategy {
	case "Handle": // on PostgreSQL in a transaction of pgx
		dedup, err := idempotency.New(inbox, "shop", &keyed)
		if err != nil || db.name != "PostgreSQL" {
			handles(dedup.Handle)
			return r, err
		}
		pool, err := db.pool(context.Background())
		r.handle = func(ctx context.Context, d amqp.Delivery, effect effect) error {
			return pgxreceiver.Handle(ctx, dedup, pool, pgx.TxOptions{}, d, func(ctx context.Context, tx pgx.Tx) error {
				return effect(ctx, pgxbridge.Tx(tx), string(d.Body))
			})
		}
		return r, err
	case "HandleBatch":
		dedup, err := idempotency.New(inbox, "shop", &keyed)
		r.batch = func(ctx context.Context, ds []amqp.Delivery, effect effect) error {
			return dedup.HandleBatch(ctx, db.DB, ds, func(ctx context.Context, tx *sql.Tx, fresh []amqp.Delivery) error {
				return eachOf(ctx, bridge.SQL(tx), fresh, effect)
			})
		}
		r.handle = func(ctx context.Context, d amqp.Delivery, effect effect) error {
			return r.batch(ctx, []amqp.Delivery{d}, effect)
		}
		return r, err
	case "Latest":
		latest, err := versions.NewLatest(inbox, "shop", versionOf, &opts)
		handles(latest.Handle)
		return r, err
	case "HighWater":
		highWater, err := versions.NewHighWater(inbox, "shop", keyOf, &opts)
		handles(highWater.Handle)
		return r, err
	case "Ordered":
		ordered, err := versions.NewOrdered(inbox, "shop", versionOf, &versions.OrderedOptions{Options: opts, GapAge: 50 * time.Millisecond})
		event := func(effect effect) versions.EventFunc {
			return func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
				return effect(ctx, bridge.SQL(tx), string(d.Body))
			}
		}
		r.handle = func(ctx context.Context, d amqp.Delivery, effect effect) error {
			return ordered.Handle(ctx, db.DB, d, event(effect))
		}
		r.beside = func(ctx context.Context, effect effect) error {
			ordered.Watch(ctx, db.DB, event(effect))
			return nil
		}
		r.left = func(ctx context.Context) (bool, error) {
			gaps, err := ordered.Gaps(ctx, db.DB, 1)
			return len(gaps) > 0, err
		}
		return r, err
	case "Accept and Work":
		worker, err := pending.NewWorker(inbox, "shop", &pending.WorkerOptions{Attempts: opts.Attempts, MinDelay: opts.MinDelay, MaxDelay: opts.MaxDelay,
			DeadLetterExchange: opts.DeadLetterExchange, HandBack: opts.HandBack, Logger: opts.Logger, Poll: 5 * time.Millisecond})
		r.handle = func(ctx context.Context, d amqp.Delivery, _ effect) error { return worker.Accept(ctx, db.DB, d) }
		r.beside = func(ctx context.Context, effect effect) error {
			return worker.Work(ctx, db.DB, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
				return effect(ctx, bridge.SQL(tx), string(d.Body))
			})
		}
		r.left = func(ctx context.Context) (bool, error) {
			counts, err := worker.Count(ctx, db.DB)
			return len(counts) > 0, err
		}
		return r, err
	}
	return nil, fmt.Errorf("no strategy %q", strategy)
}

func eachOf(ctx context.Context, tx bridge.Tx, ds []amqp.Delivery, effect effect) error {
	for _, d := range ds {
		if err := effect(ctx, tx, string(d.Body)); err != nil {
			return err
		}
	}
	return nil
}

func keyOf(d amqp.Delivery) (entity, key string, err error) {
	entity, key, found := strings.Cut(string(d.Body), ":")
	if !found {
		return "", "", fmt.Errorf("no colon in %q", d.Body)
	}
	return entity, key, nil
}

func versionOf(d amqp.Delivery) (entity string, version int64, err error) {
	entity, text, err := keyOf(d)
	if err != nil {
		return "", 0, err
	}
	version, err = strconv.ParseInt(text, 10, 64)
	return entity, version, err
}
