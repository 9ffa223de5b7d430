package sqlserver

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/mssql"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// readNow reads the database's time once: a function that is twice in a statement may be evaluated
// twice.
const readNow = "DECLARE @now datetime2(3) = sysutcdatetime();\n"

// moved is the stage time that Claim and Touch set. It is after recorded_at even if the clock has
// gone back: Cancel compares both. DATEDIFF is evaluated only where it cannot overflow.
const moved = `DATEADD(millisecond, CASE
	WHEN l.recorded_at > DATEADD(second, -10, @now) THEN 10000
	WHEN l.recorded_at < DATEADD(minute, -10, @now) THEN 600000
	ELSE DATEDIFF(millisecond, l.recorded_at, @now) END, CASE WHEN l.recorded_at > @now THEN l.recorded_at ELSE @now END)`

const (
	// It begins after the stage time @p1 and the ID @p4. A filtered index is chosen only if the
	// condition implies its filter, so the filter is repeated. The statement waits for no row, and
	// LOCK_TIMEOUT ends its wait for a change of the table. The outer SELECT sorts at most @p2
	// rows.
	dueRows = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 1000;
` + readNow + `DECLARE @since datetime2(3) = CAST(@p1 AS datetime2(3));
SELECT CONVERT(nvarchar(23), @now, 126) AS now, CAST(d.id AS binary(16)) AS id, CONVERT(nvarchar(23), d.recorded_at, 126) AS recorded_at,
	CONVERT(nvarchar(23), d.stage_at, 126) AS stage_at, d.bytes
FROM bridge_identity i LEFT JOIN (
	SELECT TOP (@p2) l.id, l.recorded_at, l.stage_at, DATALENGTH(l.message) AS bytes
	FROM bridge_ledger l WITH ($reading, INDEX (bridge_ledger_stage_at))
	WHERE l.stage_at IS NOT NULL AND l.stage_at >= @since AND l.stage_at <= @now
		AND (l.stage_at > @since OR l.id > CAST(@p4 AS uniqueidentifier))
	ORDER BY l.stage_at, l.id
) d ON 1 = 1 WHERE i.[identity] = CAST(@p3 AS uniqueidentifier) ORDER BY d.stage_at, d.id` + fixedPlan

	// The hints keep a SERIALIZABLE transaction from locking the range in which senders insert.
	cancelRow = `SET NOCOUNT OFF;
DELETE l FROM bridge_ledger l WITH (READCOMMITTEDLOCK, ROWLOCK, FORCESEEK) WHERE l.id = CAST(@p1 AS uniqueidentifier) AND l.stage_at <= l.recorded_at` + fixedPlan

	// Further columns of $ids, which carry and claim read from @p3, 8 bytes for each ID.
	withMessage = `, CAST(SUBSTRING(@p3, (pos + 1) / 2, 4) AS int) AS begins, CAST(SUBSTRING(@p3, (pos + 1) / 2 + 4, 4) AS int) AS bytes`
	withStageMS = `, CAST(SUBSTRING(@p3, (pos + 1) / 2, 8) AS bigint) AS stage_ms`
)

var (
	dueVersions = strings.Replace(dueRows, "$reading", readingVersions, 1)
	duePast     = strings.Replace(dueRows, "$reading", readingPast, 1)

	// The messages are pieces of @p4. The stage time is @p6 milliseconds after the record's time,
	// which is not before @p7. NOCOUNT: only the INSERT may count, since an assignment may count as
	// one row ('@@ROWCOUNT').
	carry = forEach(withMessage, `SET NOCOUNT ON;
DECLARE @now datetime2(3) = (SELECT MAX(t) FROM (VALUES (sysutcdatetime()), (CAST(@p7 AS datetime2(3)))) AS times (t));
SET NOCOUNT OFF;
INSERT INTO bridge_ledger (id, recorded_at, message, stage_at)
SELECT asked.id, @now, SUBSTRING(@p4, asked.begins, asked.bytes), DATEADD(millisecond, @p6, @now)
FROM bridge_identity i CROSS JOIN $ids WHERE i.[identity] = CAST(@p5 AS uniqueidentifier)`+fixedPlan)

	// A stage time is compared as milliseconds since 1970, which are exact.
	claimRows = skipLocked{within(1000, withStageMS, claimDue), within(0, withStageMS, claimDue)}

	touchCarried = newSkipLocked(readNow + `UPDATE l SET stage_at = ` + moved + ` OUTPUT inserted.id
FROM $ids INNER LOOP JOIN bridge_ledger l WITH (` + readingPast + `) ON l.id = asked.id
WHERE l.stage_at IS NOT NULL` + fixedPlan)
)

const claimDue = readNow + `UPDATE l SET stage_at = ` + moved + ` OUTPUT inserted.id, inserted.message
FROM $ids INNER LOOP JOIN bridge_ledger l WITH (` + readingPast + `) ON l.id = asked.id
WHERE DATEDIFF_BIG(millisecond, '19700101', l.stage_at) = asked.stage_ms` + fixedPlan

// carry uses one statement for the messages of a chunk.
func (l *Ledger) carry(ctx context.Context, tx bridge.Tx, stage portable.Stage, messages []driver.Carried) (changed int64, err error) {
	var ids []uuid.UUID
	var pieces, all []byte
	for _, m := range messages {
		ids = append(ids, m.ID)
		pieces = binary.BigEndian.AppendUint32(pieces, uint32(len(all)+1))
		pieces = binary.BigEndian.AppendUint32(pieces, uint32(len(m.Message)))
		all = append(all, m.Message...)
	}
	grace := int64(0)
	if stage.Published {
		grace = driver.PublishedGrace.Milliseconds()
	}
	text, packed, used := carry.fill(l.schema, ids)
	return tx.Exec(ctx, text, packed, used, filled(pieces, len(packed)/2), filled(all, room(len(all), bytesRooms)), argument(l.Identity()), grace, stage.NotBefore.Format(timeText))
}

func (l *Ledger) cancel(ctx context.Context, tx bridge.Tx, id uuid.UUID) (int64, error) {
	return tx.Exec(ctx, l.schema.In(cancelRow), argument(id))
}

// filled returns b, extended with zeros to a length.
func filled(b []byte, length int) []byte { return append(b, make([]byte, length-len(b))...) }

// due reads the rows committed when the statement began, or skips locked rows.
func (l *Ledger) due(ctx context.Context, after driver.DueRow, limit int) ([]portable.DueRow, error) {
	var rows []struct {
		Now        sql.NullString
		ID         []byte
		RecordedAt sql.NullString `db:"recorded_at"`
		StageAt    sql.NullString `db:"stage_at"`
		Bytes      sql.NullInt64
	}
	text := duePast
	if l.versioned.Load() {
		text = dueVersions
	}
	err := try(ctx, func(ctx context.Context) error {
		rows = nil
		return l.db.SelectContext(ctx, &rows, l.schema.In(text), after.StageAt.UTC().Format(timeText), limit, argument(l.Identity()), argument(after.ID))
	})
	if mssql.Number(err) == mssql.LockTimeout {
		// the setting may have changed: then the next look uses the other statement
		err = errors.Join(err, l.readSetting(ctx, l.db))
	}
	if err != nil {
		return nil, err
	}
	due := make([]portable.DueRow, len(rows))
	for i, row := range rows {
		d := &due[i]
		if d.Now, err = parseTime(row.Now); err != nil {
			return nil, err
		}
		if row.ID == nil {
			continue // no row is due
		}
		d.ID.Valid, d.RecordedAt.Valid, d.StageAt.Valid = true, true, true
		if d.ID.UUID, err = readID(row.ID); err != nil {
			return nil, err
		}
		if d.RecordedAt.Time, err = parseTime(row.RecordedAt); err != nil {
			return nil, err
		}
		if d.StageAt.Time, err = parseTime(row.StageAt); err != nil {
			return nil, err
		}
		d.Bytes = row.Bytes
	}
	return due, nil
}

// claim skips locked rows. If an answer is lost, its rows are due again at their new stage times.
func (l *Ledger) claim(ctx context.Context, rows []driver.DueRow) (claimed []driver.Carried, err error) {
	ids := make([]uuid.UUID, len(rows))
	stageAt := make(map[uuid.UUID]time.Time, len(rows))
	for i, row := range rows {
		ids[i], stageAt[row.ID] = row.ID, row.StageAt
	}
	_, _, err = claimRows.run(ids, func(s statement, ids []uuid.UUID) (changed []uuid.UUID, err error) {
		text, packed, used := s.fill(l.schema, ids)
		var times []byte
		for _, id := range ids {
			times = binary.BigEndian.AppendUint64(times, uint64(stageAt[id].UnixMilli()))
		}
		times = filled(times, len(packed)/2)
		var found []struct{ ID, Message []byte }
		err = try(ctx, func(ctx context.Context) error {
			found = nil
			return sqlx.SelectContext(ctx, l.db, &found, text, packed, used, times)
		})
		if err != nil {
			return nil, err
		}
		column := make([][]byte, len(found))
		for i, row := range found {
			column[i] = row.ID
		}
		if changed, err = readChanged(column, ids); err != nil {
			return nil, err
		}
		for i, row := range found {
			claimed = append(claimed, driver.Carried{ID: changed[i], Message: row.Message})
		}
		return changed, nil
	})
	return claimed, err
}

// touch skips locked rows.
func (l *Ledger) touch(ctx context.Context, ids []uuid.UUID) error {
	_, _, err := touchCarried.run(ids, l.change(ctx))
	return err
}
