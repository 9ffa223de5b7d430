package sqlserver

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/inspection"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// The rows that carry messages. $past is the hints by which a statement skips locked rows. It is
// left out where a plain SELECT reads the rows committed when it began: no document says that
// READPAST skips a row that optimized locking protects by its transaction's ID.
const (
	countCarried = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 1000;
SELECT count(*) FROM (
	SELECT TOP (@p1) l.stage_at FROM bridge_ledger l WITH ($past, INDEX (bridge_ledger_stage_at)) WHERE l.stage_at IS NOT NULL
) carried`

	carriedColumns = `CONVERT(nvarchar(36), l.id) AS id, DATEDIFF_BIG(millisecond, '19700101', l.recorded_at) AS recorded_ms,
	DATEDIFF_BIG(millisecond, '19700101', l.stage_at) AS stage_ms, DATALENGTH(l.message) AS bytes
FROM bridge_ledger l WITH ($past`

	carriedRows = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 1000;
SELECT TOP (@p1) ` + carriedColumns + `, INDEX (bridge_ledger_stage_at)) WHERE l.stage_at IS NOT NULL ORDER BY l.stage_at, l.id`

	carriedRow = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 1000;
SELECT ` + carriedColumns + `, FORCESEEK) WHERE l.id = CAST(@p1 AS uniqueidentifier) AND l.stage_at IS NOT NULL`

	// The index is filtered, so its condition is repeated, as in due.
	delayed = `, INDEX (bridge_ledger_stage_at)) WHERE l.stage_at IS NOT NULL AND l.stage_at > sysutcdatetime() AND l.stage_at <= l.recorded_at`

	countDelayed = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 1000;
SELECT count(*) FROM (
	SELECT TOP (@p1) l.stage_at FROM bridge_ledger l WITH ($past` + delayed + `
) carried`

	delayedRows = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 1000;
SELECT TOP (@p1) ` + carriedColumns + delayed + ` ORDER BY l.stage_at, l.id`

	// The hints are the same as in the statement that cancels. Only the UPDATE may count.
	advance = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET NOCOUNT ON;
DECLARE @now datetime2(3) = sysutcdatetime();
SET NOCOUNT OFF;
UPDATE l SET recorded_at = @now, stage_at = @now FROM bridge_ledger l WITH (READCOMMITTEDLOCK, ROWLOCK, FORCESEEK)
WHERE l.id = CAST(@p1 AS uniqueidentifier) AND l.stage_at <= l.recorded_at AND l.stage_at > @now`
)

// An Inspector inspects a ledger. It implements inspect.Diagnoser, inspect.Watcher,
// inspect.CarriedReader and inspect.Advancer.
type Inspector struct {
	ledger driver.Ledger // the inspected ledger
	on     *Ledger       // reads its table
}

var (
	_ inspect.Diagnoser     = (*Inspector)(nil)
	_ inspect.Watcher       = (*Inspector)(nil)
	_ inspect.CarriedReader = (*Inspector)(nil)
	_ inspect.Advancer      = (*Inspector)(nil)
)

// Inspect returns the inspector of a ledger.
func Inspect(ledger *Ledger) *Inspector {
	return &Inspector{ledger, ledger}
}

// InspectOwnTable returns the inspector of a ledger on a table of the application's own. Its
// Diagnose leaves out carried messages and orphans: there are none.
func InspectOwnTable(ledger *OwnLedger) *Inspector {
	return &Inspector{ledger, ledger.reads}
}

// CountCarried reads the index on the stage time, up to limit rows.
func (i *Inspector) CountCarried(ctx context.Context, limit int) (int, error) {
	return i.carried().CountCarried(ctx, limit)
}

// CarriedRows reads along the index on the stage time.
func (i *Inspector) CarriedRows(ctx context.Context, limit int) ([]inspect.CarriedRow, error) {
	return i.carried().CarriedRows(ctx, limit)
}

// CountDelayed reads the index on the stage time from the present on, up to limit rows.
func (i *Inspector) CountDelayed(ctx context.Context, limit int) (int, error) {
	return i.carried().CountDelayed(ctx, limit)
}

// DelayedRows reads along the index on the stage time from the present on.
func (i *Inspector) DelayedRows(ctx context.Context, limit int) ([]inspect.CarriedRow, error) {
	return i.carried().DelayedRows(ctx, limit)
}

// Advance changes the row by its key.
func (i *Inspector) Advance(ctx context.Context, id uuid.UUID) (bool, error) {
	return i.carried().Advance(ctx, id)
}

// CarriedRow reads the row by its key.
func (i *Inspector) CarriedRow(ctx context.Context, id uuid.UUID) (*inspect.CarriedRow, error) {
	return i.carried().CarriedRow(ctx, id)
}

func (i *Inspector) classify(err error) error {
	return classify(i.on.schema, err, i.on.rightsTo(portable.Settling))
}

// table returns the table of the IDs, as written in a statement.
func (i *Inspector) table() string { return i.on.schema.In(i.on.table) }

func (i *Inspector) carried() inspection.Carried {
	read := func(statement string) string {
		if i.on.versioned.Load() {
			return strings.Replace(statement, "$past, ", "", 1)
		}
		return strings.Replace(statement, "$past", "READCOMMITTEDLOCK, READPAST, ROWLOCK", 1)
	}
	return inspection.Carried{
		Ledger: i.ledger, DB: i.on.db, Schema: i.on.schema, Classify: i.classify, Count: read(countCarried), Rows: read(carriedRows), Row: read(carriedRow),
		CountWaiting: read(countDelayed), Waiting: read(delayedRows), MakeDue: advance,
		ID: func(id uuid.UUID) any { return id.String() },
		Ask: func(ctx context.Context, ask func(context.Context, sqlx.QueryerContext) error) error {
			return try(ctx, func(ctx context.Context) error { return ask(ctx, i.on.db) })
		},
		Change: func(ctx context.Context, change func(context.Context, sqlx.ExecerContext) error) error {
			return try(ctx, func(ctx context.Context) error { return change(ctx, i.on.db) })
		},
	}
}
