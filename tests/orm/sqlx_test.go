package orm

import (
	"context"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
)

func newSqlx(t *testing.T, url string) program {
	db, err := sqlx.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return inTx(func(ctx context.Context, do work) error {
		tx, err := db.BeginTxx(ctx, nil)
		if err != nil {
			return err
		}
		return end(tx, do(bridge.SQL(tx), func(order string) error {
			_, err := tx.NamedExecContext(ctx, `INSERT INTO orders (body) VALUES (:body)`, map[string]any{"body": order})
			return err
		}))
	})
}
