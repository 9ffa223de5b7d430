package orm

import (
	"context"
	"database/sql"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/orm/ent"
)

type usesEnt struct{ client *ent.Client }

func newEnt(t *testing.T, url string) program {
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	client := ent.NewClient(ent.Driver(entsql.OpenDB(dialect.Postgres, db)))
	t.Cleanup(func() { _ = client.Close() })
	return usesEnt{client}
}

func (p usesEnt) inTx(ctx context.Context, fn func(tx *ent.Tx) error) error {
	tx, err := p.client.Tx(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func (p usesEnt) send(ctx context.Context, s *sender.Sender, order string, end error) error {
	return p.inTx(ctx, func(tx *ent.Tx) error {
		if err := tx.Order.Create().SetBody(order).Exec(ctx); err != nil {
			return err
		}
		if _, err := s.SendTx(ctx, bridge.SQL(tx), about(order)); err != nil {
			return err
		}
		return end
	})
}

func (p usesEnt) receive(ctx context.Context, guard *idempotency.Guard, d amqp.Delivery) error {
	return guard.HandleTx(ctx, d, func(ctx context.Context, claim idempotency.Claim) error {
		return p.inTx(ctx, func(tx *ent.Tx) error {
			if fresh, err := claim(ctx, bridge.SQL(tx)); err != nil || !fresh {
				return err
			}
			return tx.Order.Create().SetBody(received(d)).Exec(ctx)
		})
	})
}
