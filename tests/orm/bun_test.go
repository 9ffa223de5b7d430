package orm

import (
	"context"
	"database/sql"
	"testing"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/twoqueue/twoqueue/bridge"
)

func openBun(t *testing.T, url string) *bun.DB {
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return bun.NewDB(db, pgdialect.New())
}

func onBun(db bun.IDB) inTx {
	return func(ctx context.Context, do work) error {
		return db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
			return do(bridge.SQL(tx.Tx), func(body string) error {
				_, err := tx.NewInsert().Model(&order{Body: body}).Exec(ctx)
				return err
			})
		})
	}
}

// A transaction of bun inside a transaction is a savepoint.
func TestANestedTransactionOfBunTakesBackItsOwnMessages(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	testNested(t, s, openBun(t, s.DatabaseURL).RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
		return sendNested(ctx, s, onBun(tx))
	}))
}

// A bun.Tx itself compiles, but its Exec replaces question marks and sends no arguments.
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
