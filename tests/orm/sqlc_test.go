package orm

import (
	"context"
	"database/sql"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/orm/sqlc/shopsql"
)

type usesSqlc struct {
	db      *sql.DB
	queries *shopsql.Queries
}

func newSqlc(t *testing.T, url string) program {
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return usesSqlc{db, shopsql.New(db)}
}

func (p usesSqlc) inTx(ctx context.Context, fn func(tx *sql.Tx, queries *shopsql.Queries) error) error {
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := fn(tx, p.queries.WithTx(tx)); err != nil {
		return err
	}
	return tx.Commit()
}

func (p usesSqlc) send(ctx context.Context, s *sender.Sender, order string, end error) error {
	return p.inTx(ctx, func(tx *sql.Tx, queries *shopsql.Queries) error {
		if err := queries.PlaceOrder(ctx, order); err != nil {
			return err
		}
		if _, err := s.SendTx(ctx, bridge.SQL(tx), about(order)); err != nil {
			return err
		}
		return end
	})
}

func (p usesSqlc) receive(ctx context.Context, guard *idempotency.Guard, d amqp.Delivery) error {
	return guard.HandleTx(ctx, d, func(ctx context.Context, claim idempotency.Claim) error {
		return p.inTx(ctx, func(tx *sql.Tx, queries *shopsql.Queries) error {
			if fresh, err := claim(ctx, bridge.SQL(tx)); err != nil || !fresh {
				return err
			}
			return queries.PlaceOrder(ctx, received(d))
		})
	})
}
