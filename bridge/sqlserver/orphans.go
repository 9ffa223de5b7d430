package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// Times are text in ISO 8601, which no setting of the connection changes.
const (
	// At least one row if the identity is right, with nulls if there are no orphans.
	orphans = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 1000;
SELECT CAST(o.id AS binary(16)) AS id, CONVERT(nvarchar(23), o.recorded_at, 126) AS recorded_at
FROM bridge_identity i LEFT JOIN (
	SELECT TOP (@p2) l.id, l.recorded_at FROM bridge_ledger l$reading
	WHERE l.recorded_at < DATEADD(second, -@p1, sysutcdatetime()) AND l.stage_at IS NULL
	ORDER BY l.recorded_at, l.id
) o ON 1 = 1 WHERE i.[identity] = CAST(@p3 AS uniqueidentifier) ORDER BY o.recorded_at, o.id`

	raise = `SET NOCOUNT OFF;
UPDATE bridge_watermark SET swept_before =
	CASE WHEN swept_before > CAST(@p1 AS datetime2(3)) THEN swept_before ELSE CAST(@p1 AS datetime2(3)) END
WHERE EXISTS (SELECT * FROM bridge_identity WHERE [identity] = CAST(@p2 AS uniqueidentifier))`

	sweptBefore = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SELECT CONVERT(nvarchar(23), w.swept_before, 126) AS swept_before,
	CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(60)) AS updateability
FROM bridge_identity i CROSS JOIN bridge_watermark w WHERE i.[identity] = CAST(@p1 AS uniqueidentifier)`
)

// The hints are committed's, without FORCESEEK, since all rows are read.
var (
	orphanVersions = strings.Replace(orphans, "$reading", "", 1)
	orphansPast    = strings.Replace(orphans, "$reading", " WITH (READCOMMITTEDLOCK, READPAST, ROWLOCK)", 1)
)

var sweep = newSkipLocked(`DELETE l OUTPUT deleted.id
FROM $ids INNER LOOP JOIN bridge_ledger l WITH (` + readingPast + `) ON l.id = asked.id
WHERE l.recorded_at < CAST(@p3 AS datetime2(3)) AND l.stage_at IS NULL`)

// timeText is the format of a datetime2(3) as a parameter. parseTime reads the server's
// texts.
const timeText = "2006-01-02T15:04:05.000"

// orphans reads the whole ledger, as it was committed or without locked rows. It waits for a change
// of the table, and fails after a second. Ages are in whole seconds.
func (l *Ledger) orphans(ctx context.Context, age time.Duration, limit int) ([]portable.OrphanRow, error) {
	var rows []struct {
		ID         []byte
		RecordedAt sql.NullString `db:"recorded_at"`
	}
	text := orphansPast
	if l.versioned.Load() {
		text = orphanVersions
	}
	seconds := int64((age + time.Second - 1) / time.Second)
	err := try(ctx, func(ctx context.Context) error {
		rows = nil
		return l.db.SelectContext(ctx, &rows, l.schema.In(text), seconds, limit, argument(l.Identity()))
	})
	if err != nil {
		return nil, err
	}
	found := make([]portable.OrphanRow, len(rows))
	for i, row := range rows {
		if row.ID == nil {
			continue // there are no orphans
		}
		id, err := readID(row.ID)
		if err != nil {
			return nil, err
		}
		found[i].ID = uuid.NullUUID{UUID: id, Valid: true}
		if found[i].RecordedAt.Time, err = parseTime(row.RecordedAt); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (l *Ledger) sweptBefore(ctx context.Context) (time.Time, error) {
	// All rows are read, so that the driver need not cancel the statement.
	var rows []struct {
		SweptBefore   sql.NullString `db:"swept_before"`
		Updateability sql.NullString
	}
	err := try(ctx, func(ctx context.Context) error {
		return l.db.SelectContext(ctx, &rows, l.schema.In(sweptBefore), argument(l.Identity()))
	})
	switch {
	case err != nil:
		return time.Time{}, err
	case len(rows) == 0:
		return time.Time{}, sql.ErrNoRows
	case rows[0].Updateability.String != readWrite:
		return time.Time{}, fmt.Errorf("%w: the database is %q", bridge.ErrNotPrimary, rows[0].Updateability.String)
	}
	return parseTime(rows[0].SweptBefore)
}

func (l *Ledger) raise(ctx context.Context, before time.Time) error {
	var changed int
	err := try(ctx, func(ctx context.Context) (err error) {
		changed, err = portable.Changed(l.db.ExecContext(ctx, l.schema.In(raise), before.Format(timeText), argument(l.Identity())))
		return err
	})
	if err != nil {
		return err
	}
	return portable.ExpectChanged(changed, 1, l.Identity())
}

// sweep skips locked rows.
func (l *Ledger) sweep(ctx context.Context, ids []uuid.UUID, before time.Time) ([]uuid.UUID, error) {
	swept, _, err := sweep.run(ids, l.change(ctx, before.Format(timeText)))
	return swept, err
}
