//go:build entgenerated

package orm

import (
	"context"
	"database/sql"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/orm/ent"
)

func init() { newEnt = onEnt }

func onEnt(t *testing.T, url string) program {
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	client := ent.NewClient(ent.Driver(entsql.OpenDB(dialect.Postgres, db)))
	t.Cleanup(func() { _ = client.Close() })
	return inTx(func(ctx context.Context, do work) error {
		tx, err := client.Tx(ctx)
		if err != nil {
			return err
		}
		return end(tx, do(bridge.SQL(tx), func(order string) error { return tx.Order.Create().SetBody(order).Exec(ctx) }))
	})
}
