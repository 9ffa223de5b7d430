package orm

import (
	"context"
	"database/sql"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/orm/sqlc/shopsql"
)

func newSqlc(t *testing.T, url string) program {
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	queries := shopsql.New(db)
	return inTx(func(ctx context.Context, do work) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		return end(tx, do(bridge.SQL(tx), func(order string) error { return queries.WithTx(tx).PlaceOrder(ctx, order) }))
	})
}
