package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// An OwnLedger is a ledger that reads a table of the application's, and does not change it. It
// implements driver.Ledger.
type OwnLedger struct {
	portable.OwnLedger
	fence
	reads *Ledger
}

var _ driver.Ledger = (*OwnLedger)(nil)

// OpenOwnTable opens the ledger of db on a table of the application's own. The column must be
// BINARY(16), or MariaDB's UUID, with a unique index on it alone that is neither IGNORED nor
// INVISIBLE, in an InnoDB table that the login may read.
func OpenOwnTable(ctx context.Context, db *sql.DB, own bridge.OwnTable) (*OwnLedger, error) {
	proof, err := Open(ctx, db)
	if err != nil {
		return nil, err
	}
	o := ownTable{proof.db, own}
	c, err := o.inspect(ctx)
	if err != nil {
		return nil, fmt.Errorf("open own table: %w", err)
	}
	l := &Ledger{db: proof.db, commit: proof.commit, column: c, flush: proof.flush, start: proof.start}
	l.Ledger = portable.With(&proof.Ledger, l.verbs())
	return &OwnLedger{reads: l, OwnLedger: portable.NewOwnLedger(&l.Ledger, c.table, c.name, proof, portable.OwnVerbs{
		Canary: own.Canary,
		Rows:   func(ids []uuid.UUID) (string, []any) { return l.statement(rows, array(ids)), nil },
		Check: func(ctx context.Context) error {
			_, err := o.inspect(ctx)
			if err == nil {
				err = o.read(ctx, c) // the index in use may have become unusable, and another usable
			}
			return err
		},
	})}, nil
}

// An ownTable is a table of the application's own in a database.
type ownTable struct {
	db  *sqlx.DB
	own bridge.OwnTable
}

// inspect returns the column's quoted names, in the catalogue's spelling.
func (o ownTable) inspect(ctx context.Context) (column, error) {
	schema, table, name, err := portable.Names(o.own)
	if err != nil {
		return column{}, err
	}
	var found struct {
		Schema     string `db:"in_schema"`
		Table      string `db:"in_table"`
		Engine     string
		Name, Type sql.NullString
	}
	err = o.db.GetContext(ctx, &found, findColumn, name, schema, table)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return column{}, fmt.Errorf("there is no table %s, or the login may not read it: GRANT SELECT ON it", o.own.Table)
	case err != nil:
		return column{}, err
	case !found.Name.Valid:
		return column{}, fmt.Errorf("%s has no column %s, or the login may not read it: GRANT SELECT ON it", o.own.Table, name)
	case found.Engine != "InnoDB":
		return column{}, fmt.Errorf("the engine of %s is %q, must be InnoDB", o.own.Table, found.Engine)
	case found.Type.String != "binary(16)" && found.Type.String != "uuid":
		return column{}, fmt.Errorf("the type of %s.%s is %s, must be binary(16)", o.own.Table, name, found.Type.String)
	}
	var indexes []string
	if err := o.db.SelectContext(ctx, &indexes, uniqueIndexes, found.Schema, found.Table, found.Name.String); err != nil {
		return column{}, fmt.Errorf("read the indexes of %s: %w", o.own.Table, err)
	}
	for _, index := range indexes {
		c := column{
			table: portable.Quote(found.Schema, "`") + "." + portable.Quote(found.Table, "`"),
			name:  portable.Quote(found.Name.String, "`"),
			index: portable.Quote(index, "`"),
		}
		err := o.read(ctx, c)
		if errorNumber(err) == noSuchIndex { // it is IGNORED (MariaDB) or INVISIBLE (MySQL)
			continue
		}
		return c, err
	}
	return column{}, fmt.Errorf("%s needs a unique index on %s alone, neither IGNORED nor INVISIBLE", o.own.Table, name)
}

// read tries the statement's table and index, without reading a row.
func (o ownTable) read(ctx context.Context, c column) error {
	probe := fmt.Sprintf(`SELECT COUNT(l.%[2]s) FROM %[1]s WHERE l.%[2]s = UNHEX('%[3]s')`, c.byIndex(), c.name, digits(uuid.Nil))
	if _, err := o.db.ExecContext(ctx, probe); err != nil {
		return fmt.Errorf("read %s.%s: %w", o.own.Table, o.own.Column, err)
	}
	return nil
}
