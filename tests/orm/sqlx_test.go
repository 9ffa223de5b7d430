package orm

import (
	"context"
	"testing"

	"github.com/jmoiron/sqlx"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
)

type usesSqlx struct{ db *sqlx.DB }

func newSqlx(t *testing.T, url string) program {
	db, err := sqlx.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return usesSqlx{db}
}

func (p usesSqlx) inTx(ctx context.Context, fn func(tx *sqlx.Tx) error) error {
	tx, err := p.db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func (p usesSqlx) send(ctx context.Context, s *sender.Sender, order string, end error) error {
	return p.inTx(ctx, func(tx *sqlx.Tx) error {
		if _, err := tx.NamedExecContext(ctx, `INSERT INTO orders (body) VALUES (:body)`, map[string]any{"body": order}); err != nil {
			return err
		}
		if _, err := s.SendTx(ctx, bridge.SQL(tx), about(order)); err != nil {
			return err
		}
		return end
	})
}

func (p usesSqlx) receive(ctx context.Context, guard *idempotency.Guard, d amqp.Delivery) error {
	return guard.HandleTx(ctx, d, func(ctx context.Context, claim idempotency.Claim) error {
		return p.inTx(ctx, func(tx *sqlx.Tx) error {
			if fresh, err := claim(ctx, bridge.SQL(tx)); err != nil || !fresh {
				return err
			}
			_, err := tx.NamedExecContext(ctx, `INSERT INTO orders (body) VALUES (:body)`, map[string]any{"body": received(d)})
			return err
		})
	})
}
