package postgres

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// A Schema names the schema of the bridge's tables and functions, as spelled in pg_namespace:
//
//	ledger, err := postgres.Schema("messaging").Open(ctx, db)
//
// All statements then name the schema, and no connection's search_path matters. The schema "" means
// the schema that search_path finds.
type Schema string

// Open opens the ledger whose tables are in the schema, as the function Open does.
func (s Schema) Open(ctx context.Context, db *sql.DB) (*Ledger, error) {
	l := &Ledger{db: sqlx.NewDb(db, "postgres"), flush: portable.NewFlush()}
	var err error
	if l.schema, err = schema.PostgreSQL(string(s)); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	if l.Ledger, err = portable.Open(ctx, l.db, l.verbs()); err != nil {
		return nil, err
	}
	if err := l.checkFunctions(ctx); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	return l, nil
}

// checkFunctions refuses functions that would use another schema's table, or none. Tables made
// without the schema, and tables in a renamed schema, have such functions.
func (l *Ledger) checkFunctions(ctx context.Context) error {
	if !l.schema.IsSet() {
		return nil
	}
	var n int
	if err := l.db.GetContext(ctx, &n, foreign, l.schema.String(), l.schema.In("bridge_ledger")); err != nil {
		return classify(l.schema, err)
	}
	if n > 0 {
		return fmt.Errorf("%w: %d functions in schema %q do not name it: run the CREATE FUNCTION statements that bridgectl migrate print shows with BRIDGE_SCHEMA=%[3]s", bridge.ErrNoSchema, n, l.schema)
	}
	return nil
}
