package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

// What is asked of the server. Properties that it does not know are null.
const (
	clock = `SELECT DATEDIFF_BIG(millisecond, '19700101', SYSUTCDATETIME())`

	serverState = `SELECT CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(60)) AS version,
	CAST(PARSENAME(CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(60)), 4) AS int) AS major,
	COALESCE(CAST(SERVERPROPERTY('EngineEdition') AS int), 0) AS edition,
	COALESCE(CAST(SERVERPROPERTY('babelfish') AS int), 0) AS babelfish,
	CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(60)) AS updateability,
	d.compatibility_level AS compatibility,
	d.delayed_durability_desc AS durability,
	CAST(d.is_read_committed_snapshot_on AS int) AS rcsi,
	d.snapshot_isolation_state_desc AS snapshots,
	COALESCE(CAST(DATABASEPROPERTYEX(DB_NAME(), 'IsOptimizedLockingOn') AS int), 0) AS optimized,
	COALESCE((SELECT t.lock_escalation_desc FROM sys.tables t WHERE t.object_id = OBJECT_ID(@p1)), '') AS escalation,
	(SELECT count(*) FROM sys.indexes x WHERE x.object_id = OBJECT_ID(@p1) AND x.allow_page_locks = 1) AS page_locks,
	COALESCE((SELECT SUM(p.rows) FROM sys.partitions p WHERE p.object_id = OBJECT_ID('bridge_ledger') AND p.index_id IN (0, 1)), 0) AS row_count,
	COALESCE(HAS_PERMS_BY_NAME(NULL, NULL, 'VIEW SERVER STATE'), 0) AS sees_server,
	COALESCE(HAS_PERMS_BY_NAME(DB_NAME(), 'DATABASE', 'VIEW DATABASE STATE'), 0) AS sees_database
FROM sys.databases d WHERE d.database_id = DB_ID()`

	rights = `SELECT w.name + ' ON ' + w.relation AS missing FROM (VALUES %s) AS w (relation, name)
WHERE COALESCE(HAS_PERMS_BY_NAME(w.relation, 'OBJECT', w.name), 0) = 0`
)

// The rights that the package's documentation names, as values of the statement above.
const (
	verifierNeeds = `('bridge_ledger', 'SELECT'), ('bridge_ledger', 'INSERT'), ('bridge_ledger', 'DELETE'), ('bridge_identity', 'SELECT'), ('bridge_ledger_version', 'SELECT'), ('bridge_watermark', 'SELECT')`
	unparkNeeds   = `('bridge_parked', 'SELECT'), ('bridge_parked', 'DELETE'), ('bridge_ledger', 'UPDATE')`
	sweepNeeds    = `('bridge_watermark', 'UPDATE'), ('bridge_ledger', 'UPDATE'), ('bridge_ledger', 'DELETE')`
)

const (
	minMajor      = 12 // SQL Server 2014, and what Azure calls itself
	azureDatabase = 5  // of EngineEdition
)

var (
	_ bridge.Diagnoser = (*Ledger)(nil)
	_ bridge.Diagnoser = (*ownTable)(nil)
)

// Diagnose looks at the server, at the database and at the bridge's tables.
func (l *Ledger) Diagnose(ctx context.Context) ([]bridge.Finding, error) { return l.diagnose(ctx, l) }

// Diagnose is Ledger's, with the own table checked instead of bridge_ledger. It leaves
// out parked messages and orphans, as there are none.
func (o *ownTable) Diagnose(ctx context.Context) ([]bridge.Finding, error) {
	return o.ledger.diagnose(ctx, o)
}

// diagnose examines the database of l for the ledger that is in use.
func (l *Ledger) diagnose(ctx context.Context, used bridge.Ledger) ([]bridge.Finding, error) {
	d := diagnosis{ledger: l}
	d.Ledger(ctx, used)
	for _, part := range []func(context.Context) error{d.server, d.rights, d.oldest} {
		if err := try(ctx, part); err != nil {
			return d.Findings, fmt.Errorf("diagnose: %w", classify(err, l.rights))
		}
	}
	err := try(ctx, func(ctx context.Context) error {
		d.Clock(ctx, l.db, clock)
		return ctx.Err()
	})
	d.Backlog(ctx, used)
	return d.Findings, err
}

type diagnosis struct {
	tables.Findings
	ledger *Ledger
	sees   bool // other sessions
}

// properties are the answer to serverState.
type properties struct {
	Version       sql.NullString
	Major         sql.NullInt64
	Edition       int
	Babelfish     bool
	Updateability sql.NullString
	Compatibility int
	Durability    string
	RCSI          bool
	Snapshots     string
	Optimized     bool
	Escalation    string
	PageLocks     int   `db:"page_locks"`
	Rows          int64 `db:"row_count"`
	SeesServer    bool  `db:"sees_server"`
	SeesDatabase  bool  `db:"sees_database"`
}

func (d *diagnosis) server(ctx context.Context) error {
	var p properties
	if err := d.ledger.db.GetContext(ctx, &p, serverState, d.ledger.table); err != nil {
		return err
	}
	d.Expect(tables.CheckVersion, p.Major.Int64 >= minMajor || p.Babelfish, p.Version.String, bridge.Error,
		p.Version.String+", must be 12 (SQL Server 2014) at least", "use a newer server")
	d.Expect("compatibility level", p.Compatibility >= minCompatibility, fmt.Sprint(p.Compatibility), bridge.Error,
		fmt.Sprintf("%d, must be %d at least", p.Compatibility, minCompatibility), "ALTER DATABASE CURRENT SET COMPATIBILITY_LEVEL")
	d.Expect(tables.CheckPrimary, p.Updateability.String == readWrite, "it takes writes", bridge.Error,
		fmt.Sprintf("it is %q: a readable secondary, or read-only", p.Updateability.String),
		"connect to the primary, without ApplicationIntent=ReadOnly")
	d.Expect(tables.CheckDurable, p.Durability == durable, "delayed durability is "+durable, bridge.Error,
		"delayed durability is "+p.Durability+": a crash can undo a transaction whose message was forwarded",
		"ALTER DATABASE CURRENT SET DELAYED_DURABILITY = "+durable)
	d.isolation(p)
	d.locking(p)
	d.OK(tables.CheckRows, "about %d", p.Rows)
	d.sees = p.SeesServer
	mend := "GRANT VIEW SERVER STATE TO the verifier's login; since 2022 VIEW SERVER PERFORMANCE STATE will do"
	if p.Edition == azureDatabase {
		d.sees, mend = p.SeesDatabase, "GRANT VIEW DATABASE STATE TO the verifier's user"
	}
	d.Expect(tables.CheckWatch, d.sees, "all sessions can be seen", bridge.Warning, "the login may not see other sessions: no holder can be told", mend)
	return nil
}

func (d *diagnosis) isolation(p properties) {
	level := "READ COMMITTED, with locks"
	if p.RCSI {
		level = "READ COMMITTED, with versions (READ_COMMITTED_SNAPSHOT)"
	}
	d.OK(tables.CheckIsolation, "%s; SNAPSHOT is %s; the verifier asks for locks either way", level, p.Snapshots)
	d.Expect("lock hints", !p.Babelfish, "it is not Babelfish, which ignores them", bridge.Warning,
		"it is Babelfish, which ignores them: the proof has the verifier wait by an INSERT instead, and an own table cannot be used",
		"read what the package's documentation says of servers that ignore hints")
}

func (d *diagnosis) locking(p properties) {
	d.OK("optimized locking", "%s", map[bool]string{true: "on", false: "off"}[p.Optimized])
	d.Expect("lock escalation", p.Escalation == "DISABLE", "disabled", bridge.Warning,
		fmt.Sprintf("it is %q: after a transaction with thousands of rows, messages wait for it one by one", p.Escalation),
		"ALTER TABLE "+d.ledger.table+" SET (LOCK_ESCALATION = DISABLE)")
	d.Expect("page locks", p.PageLocks == 0, "none", bridge.Warning,
		fmt.Sprintf("allowed by %d indexes: the lookup that never waits does not pass over them", p.PageLocks),
		"ALTER INDEX ALL ON "+d.ledger.table+" SET (ALLOW_PAGE_LOCKS = OFF)")
}

func (d *diagnosis) rights(ctx context.Context) error {
	parts := []struct {
		check, values string
		level         bridge.Level
		missing       []string
	}{
		{check: tables.CheckRights, values: verifierNeeds, level: bridge.Error},
		{check: tables.CheckUnpark, values: unparkNeeds, level: bridge.Warning},
		{check: tables.CheckSweep, values: sweepNeeds, level: bridge.Warning},
	}
	for i := range parts {
		if err := d.ledger.db.SelectContext(ctx, &parts[i].missing, fmt.Sprintf(rights, parts[i].values)); err != nil {
			return err
		}
	}
	for _, part := range parts { // only now: try may have begun anew
		d.Missing(part.check, part.level, part.missing)
	}
	return nil
}

func (d *diagnosis) oldest(ctx context.Context) error {
	const among = "the transactions that have the table locked for a change"
	if !d.sees {
		d.Unknown(tables.CheckOldest, "as for: "+tables.CheckWatch, errUnseen)
		return nil
	}
	found, err := list(ctx, d.ledger.db, openTransactions, d.ledger.table, int64(0), int64(1))
	if err != nil {
		return err
	}
	var age sql.NullFloat64
	if len(found) > 0 {
		age = sql.NullFloat64{Float64: max(0, time.Since(found[0].Since).Seconds()), Valid: true}
	}
	d.Oldest(age, among)
	return nil
}

var errUnseen = errors.New("the login may not see other sessions")
