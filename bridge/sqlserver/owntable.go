package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// An OwnLedger is a ledger that reads a table of the application's, and does not change it. It
// implements driver.Ledger.
type OwnLedger struct {
	portable.OwnLedger
	reads *Ledger
}

var _ driver.Ledger = (*OwnLedger)(nil)

// OpenOwnTable opens the ledger of db on a table of the application's own. The column must be a
// uniqueidentifier, with a unique index on it alone, neither filtered nor disabled, in a table on
// disk that the login may read. The table may have no clustered columnstore index, and all its
// indexes must allow row locks.
//
// If the server ignores lock hints, the proof fails with bridge.ErrProof, because the other way to
// wait would insert into the table.
func OpenOwnTable(ctx context.Context, db *sql.DB, own bridge.OwnTable) (*OwnLedger, error) {
	return Schema("").OpenOwnTable(ctx, db, own)
}

// OpenOwnTable opens the ledger with the bridge's tables in the schema, as the function
// OpenOwnTable does.
func (s Schema) OpenOwnTable(ctx context.Context, db *sql.DB, own bridge.OwnTable) (*OwnLedger, error) {
	proof, err := s.Open(ctx, db)
	if err != nil {
		return nil, err
	}
	table, column, err := proof.inspect(ctx, own)
	if err != nil {
		return nil, fmt.Errorf("open own table: %w", err)
	}
	l := &Ledger{db: proof.db, schema: proof.schema, lookups: lookupsIn(table, column)}
	l.Ledger = portable.With(&proof.Ledger, l.verbs())
	rows := forIDs(rows, "$table", table, "$column", column)
	// read shows that the login may read the column, and that the table takes both lookups' hints.
	read := func(ctx context.Context) error {
		_, _, err := l.lookUp(ctx, []uuid.UUID{uuid.Nil})
		if err == nil {
			_, _, err = l.settle(ctx, uuid.Nil, time.Millisecond)
		}
		return err
	}
	if err = l.readSetting(ctx, l.db); err == nil {
		err = read(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("open own table: %w", classify(l.schema, err, l.rights))
	}
	return &OwnLedger{reads: l, OwnLedger: portable.NewOwnLedger(&l.Ledger, table, column, proof, portable.OwnVerbs{
		Rows: func(ids []uuid.UUID) (string, []any) {
			text, packed, used := rows.fill(l.schema, ids)
			return text, []any{packed, used, argument(l.Identity())}
		},
		Most:   chunk,
		Canary: own.Canary,
		Check: func(ctx context.Context) error {
			_, _, err := l.inspect(ctx, own)
			if err == nil {
				err = read(ctx)
			}
			return err
		},
	})}, nil
}

// inspect returns the quoted names of the table and the column, in the catalogue's spelling, the
// table's with its schema.
func (l *Ledger) inspect(ctx context.Context, own bridge.OwnTable) (table, column string, err error) {
	schema, table, column, err := portable.Names(own)
	if err != nil {
		return "", "", err
	}
	asked := portable.Quote(table, "]")
	if schema != "" {
		asked = portable.Quote(schema, "]") + "." + asked
	}
	var found []struct {
		Schema       string `db:"in_schema"`
		Table        string `db:"in_table"`
		Kind         string
		InMemory     bool `db:"in_memory"`
		Name, Type   sql.NullString
		UniqueKeys   int `db:"unique_keys"`
		Columnstores int
		NoRowLocks   int `db:"no_row_locks"`
	}
	err = try(ctx, func(ctx context.Context) error {
		found = nil
		return l.db.SelectContext(ctx, &found, findColumn, asked, column)
	})
	if err != nil {
		return "", "", err
	}
	if len(found) != 1 {
		return "", "", fmt.Errorf("there is no table %s, or the login has no right on it: GRANT SELECT ON it", own.Table)
	}
	switch t := found[0]; {
	case t.Kind != "USER_TABLE":
		return "", "", fmt.Errorf("%s is not a table, but %s", own.Table, t.Kind)
	case t.InMemory:
		return "", "", fmt.Errorf("%s is memory-optimized: there are no locks to wait for", own.Table)
	case t.Columnstores > 0: // there the lookups' ROWLOCK is error 651
		return "", "", fmt.Errorf("%s has a clustered columnstore index, which has no locks of rows: use the ledger's own table", own.Table)
	case t.NoRowLocks > 0:
		return "", "", fmt.Errorf("%d indexes of %s allow no locks of rows: ALTER INDEX ALL ON %s SET (ALLOW_ROW_LOCKS = ON)", t.NoRowLocks, own.Table, own.Table)
	case !t.Name.Valid:
		return "", "", fmt.Errorf("%s has no column %s, or the login has no right on it: GRANT SELECT ON %s", own.Table, column, own.Table)
	case t.Type.String != keyType:
		return "", "", fmt.Errorf("the type of %s.%s is %s, must be %s", own.Table, column, t.Type.String, keyType)
	case t.UniqueKeys == 0:
		return "", "", fmt.Errorf("%s needs a unique index on %s alone, not filtered and not disabled", own.Table, column)
	default:
		return portable.Quote(t.Schema, "]") + "." + portable.Quote(t.Table, "]"), portable.Quote(t.Name.String, "]"), nil
	}
}
