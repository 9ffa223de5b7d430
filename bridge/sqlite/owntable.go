package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// An OwnLedger is a ledger that reads a table of the application's, and does not change it. It
// implements driver.Ledger.
type OwnLedger struct {
	portable.OwnLedger
	fence
}

var _ driver.Ledger = (*OwnLedger)(nil)

// OpenOwnTable opens the ledger of db on a table of the application's own, in the same file. The
// column must be of a text type, with a unique index on it alone, and contain the IDs as canonical
// text in lower case.
func OpenOwnTable(ctx context.Context, db *sql.DB, own bridge.OwnTable) (*OwnLedger, error) {
	proof, err := Open(ctx, db)
	if err != nil {
		return nil, err
	}
	table, column, err := proof.inspect(ctx, own)
	if err != nil {
		return nil, fmt.Errorf("open own table: %w", err)
	}
	l := &Ledger{db: proof.db, committed: fmt.Sprintf(committed, table, column), file: proof.file}
	l.Ledger = portable.With(&proof.Ledger, l.verbs())
	rows := fmt.Sprintf(rows, table, column)
	return &OwnLedger{OwnLedger: portable.NewOwnLedger(&l.Ledger, table, column, proof, portable.OwnVerbs{
		Canary: own.Canary,
		Rows:   func(ids []uuid.UUID) (string, []any) { return rows, []any{array(ids), l.Identity().String()} },
		Check: func(ctx context.Context) error {
			_, _, err := l.inspect(ctx, own)
			return err
		},
	})}, nil
}

// inspect returns the quoted names of the table and the column.
func (l *Ledger) inspect(ctx context.Context, own bridge.OwnTable) (table, column string, err error) {
	schema, table, column, err := portable.Names(own)
	if err != nil {
		return "", "", err
	}
	if schema != "" && schema != "main" {
		return "", "", fmt.Errorf("the table must be in the ledger's file, main, not in %s", schema)
	}
	var found struct {
		Name   sql.NullString
		Type   sql.NullString
		Unique bool `db:"unique_index"`
	}
	err = l.db.GetContext(ctx, &found, findColumn, column, table)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return "", "", fmt.Errorf("there is no table %s", own.Table)
	case err != nil:
		return "", "", err
	case !found.Name.Valid:
		return "", "", fmt.Errorf("%s has no column %s", own.Table, column)
	case !isText(found.Type.String):
		return "", "", fmt.Errorf("the type of %s.%s is %q, must be TEXT", own.Table, column, found.Type.String)
	case !found.Unique:
		return "", "", fmt.Errorf("%s needs a unique index on %s alone, not a partial one", own.Table, column)
	}
	return "main." + portable.Quote(table, `"`), portable.Quote(column, `"`), nil
}

// isText reports whether SQLite gives a column of that type the affinity of text.
func isText(declared string) bool {
	if strings.Contains(declared, "INT") {
		return false
	}
	return strings.Contains(declared, "CHAR") || strings.Contains(declared, "CLOB") || strings.Contains(declared, "TEXT")
}
