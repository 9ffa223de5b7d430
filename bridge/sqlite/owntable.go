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
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

// Whether the identity is right, and how many rows are found.
const rows = `SELECT count(*) > 0, count(l.%[2]s) FROM bridge_identity i, json_each(?) ids
LEFT JOIN %[1]s l ON l.%[2]s = ids.value WHERE i.identity = ?`

// An OwnLedger is a ledger that reads another table than bridge_ledger, and leaves it as
// it is. It implements driver.Ledger.
type OwnLedger struct {
	tables.OwnLedger
	ledger *Ledger // reads the own table
	own    bridge.OwnTable
	rows   string
}

var _ driver.Ledger = (*OwnLedger)(nil)

// OpenOwnTable opens the ledger of db on a table of the application's own, in the
// same file. The column must be of a text type, with a unique index on it alone,
// and hold the IDs as canonical text in lower case.
func OpenOwnTable(ctx context.Context, db *sql.DB, own bridge.OwnTable) (*OwnLedger, error) {
	proof, err := Open(ctx, db)
	if err != nil {
		return nil, err
	}
	table, column, err := inspectOwn(ctx, proof, own)
	if err != nil {
		return nil, fmt.Errorf("open own table: %w", err)
	}
	ledger := &Ledger{Ledger: proof.Ledger, db: proof.db, identity: proof.identity, committed: fmt.Sprintf(committed, table, column)}
	return &OwnLedger{
		OwnLedger: tables.NewOwnLedger(ledger, ledger.Watched(), tables.OwnIdentity(proof.identity, table, column), proof),
		ledger:    ledger,
		own:       own,
		rows:      fmt.Sprintf(rows, table, column),
	}, nil
}

// Record shows that tx has a row for each of ids, and changes nothing.
func (o *OwnLedger) Record(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) error {
	if len(ids) == 0 {
		return nil
	}
	if err := tables.ExpectRows(ctx, tx, o.ledger.identity, len(ids), o.rows, array(ids), o.ledger.identity.String()); err != nil {
		return fmt.Errorf("record %d IDs in %s: %w", len(ids), o.own.Table, classify(err))
	}
	return nil
}

// Check is Ledger's, and looks at the table again.
func (o *OwnLedger) Check(ctx context.Context) error {
	if err := o.Ledger.Check(ctx); err != nil {
		return err
	}
	if _, _, err := inspectOwn(ctx, o.ledger, o.own); err != nil {
		return fmt.Errorf("check own table: %w", err)
	}
	return nil
}

// A unique index counts if it is on the column alone and on all rows. The primary
// key is among the indexes, as it is text.
const findColumn = `SELECT c.name, upper(c.type) AS type, EXISTS (
	SELECT 1 FROM pragma_index_list(t.name) x WHERE x."unique" = 1 AND x.partial = 0
	AND (SELECT count(*) FROM pragma_index_info(x.name)) = 1 AND (SELECT k.name FROM pragma_index_info(x.name) k) = c.name
) AS unique_index
FROM sqlite_schema t LEFT JOIN pragma_table_info(t.name) c ON c.name = ?
WHERE t.type = 'table' AND t.name = ?`

// inspectOwn returns the quoted names of the table and the column.
func inspectOwn(ctx context.Context, l *Ledger, own bridge.OwnTable) (table, column string, err error) {
	schema, table, column, err := tables.Names(own)
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
		return "", "", classify(err)
	case !found.Name.Valid:
		return "", "", fmt.Errorf("%s has no column %s", own.Table, column)
	case !isText(found.Type.String):
		return "", "", fmt.Errorf("the type of %s.%s is %q, must be TEXT", own.Table, column, found.Type.String)
	case !found.Unique:
		return "", "", fmt.Errorf("%s needs a unique index on %s alone, not a partial one", own.Table, column)
	}
	return "main." + tables.Quote(table, `"`), tables.Quote(column, `"`), nil
}

// isText tells whether SQLite gives a column of that type the affinity of text.
func isText(declared string) bool {
	if strings.Contains(declared, "INT") {
		return false
	}
	return strings.Contains(declared, "CHAR") || strings.Contains(declared, "CLOB") || strings.Contains(declared, "TEXT")
}
