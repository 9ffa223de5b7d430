package orm

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/pgxbridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/sender/pgxsender"
)

type usesPgx struct{ pool *pgxpool.Pool }

func openPgx(t *testing.T, url string) usesPgx {
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return usesPgx{pool}
}

func newPgx(t *testing.T, url string) program { return openPgx(t, url) }

func (p usesPgx) send(ctx context.Context, s *sender.Sender, order string, end error) error {
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders (body) VALUES ($1)`, order); err != nil {
			return err
		}
		if _, err := s.SendTx(ctx, pgxbridge.Tx(tx), about(order)); err != nil {
			return err
		}
		return end
	})
}

func (p usesPgx) receive(ctx context.Context, guard *idempotency.Guard, d amqp.Delivery) error {
	return guard.HandleTx(ctx, d, func(ctx context.Context, claim idempotency.Claim) error {
		return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
			if fresh, err := claim(ctx, pgxbridge.Tx(tx)); err != nil || !fresh {
				return err
			}
			_, err := tx.Exec(ctx, `INSERT INTO orders (body) VALUES ($1)`, received(d))
			return err
		})
	})
}

// usesPgxInTx lets the sender begin and commit.
type usesPgxInTx struct{ usesPgx }

func newPgxInTx(t *testing.T, url string) program { return usesPgxInTx{openPgx(t, url)} }

func (p usesPgxInTx) send(ctx context.Context, s *sender.Sender, order string, end error) error {
	return pgxsender.InTx(ctx, s, p.pool, pgx.TxOptions{}, func(tx *pgxsender.Transaction) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders (body) VALUES ($1)`, order); err != nil {
			return err
		}
		if _, err := tx.Send(about(order)); err != nil {
			return err
		}
		return end
	})
}
