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

// server names the instance by its name and its start, when it made tempdb. Azure SQL Database does
// not show tempdb; there the instance is the logical server's name. Babelfish does not make tempdb
// anew at a start.
const server = `CONCAT(@@SERVERNAME, ' ', (SELECT CONVERT(nvarchar(30), create_date, 126) FROM sys.databases WHERE name = 'tempdb')) AS instance`

// The texts that read a table of IDs. $table and $column are its names.
const (
	// At least one row if the identity is right, with a null id if no ID is found. The result is
	// the requested ID, as the column may have a mask. LOOP fixes the join; FORCESEEK restricts it
	// to the requested rows. $reading waits for no row, and LOCK_TIMEOUT 0 for no change of the
	// table.
	committed = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 0;
SELECT CAST(asked.id AS binary(16)) AS id, ` + server + ` FROM bridge_identity i
LEFT JOIN ($ids INNER LOOP JOIN $table l WITH ($reading) ON l.$column = asked.id) ON 1 = 1
WHERE i.[identity] = CAST(@p3 AS uniqueidentifier)` + fixedPlan

	// With READ_COMMITTED_SNAPSHOT, a SELECT reads the rows committed when it began. Without it,
	// READPAST skips locked rows; no document states whether it skips a row that optimized locking
	// protects by its transaction's ID.
	readingVersions = "FORCESEEK"
	readingPast     = "READCOMMITTEDLOCK, READPAST, ROWLOCK, FORCESEEK"

	// The lookup committed, for rows of bridge_ledger that are at most @p4 milliseconds old, an
	// int.
	recent = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 0;
SELECT CAST(asked.id AS binary(16)) AS id, ` + server + ` FROM bridge_identity i
LEFT JOIN ($ids INNER LOOP JOIN bridge_ledger l WITH ($reading) ON l.id = asked.id
	AND l.recorded_at BETWEEN DATEADD(millisecond, -@p4, sysutcdatetime()) AND sysutcdatetime()) ON 1 = 1
WHERE i.[identity] = CAST(@p3 AS uniqueidentifier)` + fixedPlan

	snapshotOn = `SET LOCK_TIMEOUT 0;
SELECT count(*) FROM sys.databases WHERE name = DB_NAME() AND is_read_committed_snapshot_on = @p1`

	// A readable secondary, where a connection may end up after a failover, would ignore the hints
	// and read an old state.
	settleBySelect = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SELECT (SELECT count(*) FROM bridge_identity WHERE [identity] = CAST(@p2 AS uniqueidentifier)) AS own,
	(SELECT count(*) FROM $table WITH (READCOMMITTEDLOCK, ROWLOCK, FORCESEEK) WHERE $column = CAST(@p1 AS uniqueidentifier)) AS found,
	CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(60)) AS updateability, ` + server + fixedPlan
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
