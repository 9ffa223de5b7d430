package orm

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/twoqueue/twoqueue/bridge/pgxbridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/sender/pgxsender"
)

const placeOrder = `INSERT INTO orders (body) VALUES ($1)`

func openPgx(t *testing.T, url string) *pgxpool.Pool {
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func onPgx(pool *pgxpool.Pool) inTx {
	return func(ctx context.Context, do work) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			return do(pgxbridge.Tx(tx), func(order string) error {
				_, err := tx.Exec(ctx, placeOrder, order)
				return err
			})
		})
	}
}

// usesPgxInTx lets the sender begin and commit.
type usesPgxInTx struct {
	inTx
	pool *pgxpool.Pool
}

func newPgxInTx(t *testing.T, url string) program {
	pool := openPgx(t, url)
	return usesPgxInTx{onPgx(pool), pool}
}

func (p usesPgxInTx) send(ctx context.Context, s *sender.Sender, order string, end error) error {
	return pgxsender.InTx(ctx, s, p.pool, pgx.TxOptions{}, func(tx *pgxsender.Tx) error {
		if _, err := tx.Exec(ctx, placeOrder, order); err != nil {
			return err
		}
		if _, err := tx.Send(about(order)); err != nil {
			return err
		}
		return end
	})
}
