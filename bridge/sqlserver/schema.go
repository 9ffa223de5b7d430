package sqlserver

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/internal/portable"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// A Schema names the schema of the bridge's tables, as spelled in sys.schemas:
//
//	ledger, err := sqlserver.Schema("messaging").Open(ctx, db)
//
// All statements then name the schema, and no login's default schema matters. Statements that name
// the schema also share their plans between logins of different default schemas
// ('sys.dm_exec_plan_attributes', user_id). The schema "" means the login's default schema, or dbo.
type Schema string

// Open opens the ledger whose tables are in the schema, as the function Open does.
func (s Schema) Open(ctx context.Context, db *sql.DB) (*Ledger, error) {
	l := &Ledger{db: sqlx.NewDb(db, "sqlserver"), lookups: lookupsIn("bridge_ledger", "id")}
	var err error
	if l.schema, err = schema.SQLServer(string(s)); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	if l.Ledger, err = portable.Open(ctx, l.db, l.verbs()); err != nil {
		return nil, err
	}
	if err := l.readSetting(ctx, l.db); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	return l, nil
}
