package orm

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/verifier"
)

type usesBun struct{ db bun.IDB }

func newBun(t *testing.T, url string) program { return usesBun{openBun(t, url)} }

func openBun(t *testing.T, url string) *bun.DB {
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return bun.NewDB(db, pgdialect.New())
}

func (p usesBun) send(ctx context.Context, s *sender.Sender, body string, end error) error {
	return p.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		if _, err := tx.NewInsert().Model(&order{Body: body}).Exec(ctx); err != nil {
			return err
		}
		if _, err := s.SendTx(ctx, bridge.SQL(tx.Tx), about(body)); err != nil {
			return err
		}
		return end
	})
}

func (p usesBun) receive(ctx context.Context, guard *idempotency.Guard, d amqp.Delivery) error {
	return guard.HandleTx(ctx, d, func(ctx context.Context, claim idempotency.Claim) error {
		return p.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
			if fresh, err := claim(ctx, bridge.SQL(tx.Tx)); err != nil || !fresh {
				return err
			}
			_, err := tx.NewInsert().Model(&order{Body: received(d)}).Exec(ctx)
			return err
		})
	})
}

// bun's transaction in a transaction is a savepoint.
func TestANestedTransactionOfBunTakesBackItsOwnMessages(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	err := openBun(t, s.DatabaseURL).RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
		if err := (usesBun{tx}).send(ctx, s.Sender, "three pears", errUndone); !errors.Is(err, errUndone) {
			return err
		}
		return usesBun{tx}.send(ctx, s.Sender, "two apples", nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	wantOrders(t, s, "two apples")
	v := s.Verify(verifier.Options{})
	defer v.Stop()
	if d := s.Receive("orders", 1)[0]; string(d.Body) != "two apples" {
		t.Errorf("received %q", d.Body)
	}
	s.Eventually("the other is dropped", func() bool { return v.Stats().Dropped == 1 })
}

// A bun.Tx itself compiles; its Exec replaces question marks, and sends no arguments.
func TestABunTxItselfSendsNothing(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	err := openBun(t, s.DatabaseURL).RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
		_, err := s.Sender.SendTx(ctx, bridge.SQL(tx), about("two apples"))
		return err
	})
	if err == nil {
		t.Error("a bun.Tx itself can send: say so in package bridge")
	}
	if n := len(s.Staged()); n != 0 {
		t.Errorf("%d messages are staged", n)
	}
}
