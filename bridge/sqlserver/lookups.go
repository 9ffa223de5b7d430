package sqlserver

import (
	"context"
	"database/sql"
	"strings"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/mssql"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

var (
	recentVersions = forIDs(recent, "$reading", readingVersions)
	recentPast     = forIDs(recent, "$reading", readingPast)
)

// lookups are the statements that read the IDs of one table.
type lookups struct {
	table     string
	versions  statement // the non-waiting lookup with READ_COMMITTED_SNAPSHOT
	past      statement // and without it
	settle    string
	rights    string      // rights that the statements need, in the words of GRANT
	versioned atomic.Bool // whether READ_COMMITTED_SNAPSHOT is on
}

// lookupsIn takes names as they are written in a statement.
func lookupsIn(table, column string) *lookups {
	in := func(reading string) statement {
		return forIDs(committed, "$table", table, "$column", column, "$reading", reading)
	}
	return &lookups{
		table:    table,
		versions: in(readingVersions),
		past:     in(readingPast),
		settle:   strings.NewReplacer("$table", table, "$column", column).Replace(settleBySelect),
		rights:   "SELECT ON " + table + ", SELECT ON bridge_identity",
	}
}

// committed returns the non-waiting lookup.
func (l *lookups) committed() statement {
	if l.versioned.Load() {
		return l.versions
	}
	return l.past
}

// recently returns the lookup of recent rows, which does not wait either.
func (l *lookups) recently() statement {
	if l.versioned.Load() {
		return recentVersions
	}
	return recentPast
}

// readSetting reads which lookup is right for db. If the server does not answer at once, the choice
// stays.
func (l *lookups) readSetting(ctx context.Context, db *sqlx.DB) error {
	var on int
	err := try(ctx, func(ctx context.Context) error { return db.GetContext(ctx, &on, snapshotOn, 1) })
	if err == nil {
		l.versioned.Store(on == 1)
	}
	if mssql.Number(err) == mssql.LockTimeout {
		return nil
	}
	return err
}

// find runs a statement that looks IDs up and checks the identity.
func (l *Ledger) find(ctx context.Context, q sqlx.QueryerContext, s statement, ids []uuid.UUID, further ...any) ([]uuid.UUID, driver.Instance, error) {
	text, packed, used := s.fill(l.schema, ids)
	var rows []struct {
		ID       []byte
		Instance sql.NullString
	}
	if err := sqlx.SelectContext(ctx, q, &rows, text, append([]any{packed, used, argument(l.Identity())}, further...)...); err != nil {
		return nil, "", err
	}
	if len(rows) == 0 {
		return nil, "", portable.OtherLedger(l.Identity())
	}
	var found [][]byte
	for _, row := range rows {
		if row.ID != nil {
			found = append(found, row.ID)
		}
	}
	known, err := readIDs(found)
	return known, driver.Instance(rows[0].Instance.String), err
}
