package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// inspectOwn returns the quoted names of the table and the column, the table's with its schema, so
// that they are the same under any search_path.
func inspectOwn(ctx context.Context, db *sqlx.DB, own bridge.OwnTable) (table, column string, err error) {
	schema, name, column, err := portable.Names(own)
	if err != nil {
		return "", "", err
	}
	var found struct {
		Schema, Name, Type string
		IsTable            bool `db:"is_table"`
		Logged             bool
		RowSecurity        bool `db:"row_security"`
		HasColumn          bool `db:"has_column"`
		Readable           bool
		HasIndex           bool `db:"has_index"`
	}
	err = db.GetContext(ctx, &found, findColumn, schema, name, column)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return "", "", fmt.Errorf("there is no table %s", own.Table)
	case err != nil:
		return "", "", err
	case !found.IsTable:
		return "", "", fmt.Errorf("%s is not a table", own.Table)
	case !found.Logged:
		return "", "", fmt.Errorf("%s is temporary or unlogged: a crash would remove committed rows", own.Table)
	case !found.HasColumn:
		return "", "", fmt.Errorf("%s has no column %s", own.Table, column)
	case found.Type != "uuid":
		return "", "", fmt.Errorf("the type of %s.%s is %s, must be uuid", own.Table, column, found.Type)
	case !found.HasIndex:
		return "", "", fmt.Errorf("%s needs a unique index on %s alone, not partial and not deferrable", own.Table, column)
	case !found.Readable:
		return "", "", fmt.Errorf("the login may not read %s: GRANT SELECT (%s) ON %s, and USAGE ON its schema", own.Table, column, own.Table)
	case found.RowSecurity:
		return "", "", fmt.Errorf("row-level security may hide rows of %s from the login: give it BYPASSRLS", own.Table)
	}
	return portable.Quote(found.Schema, `"`) + "." + portable.Quote(found.Name, `"`), portable.Quote(column, `"`), nil
}
