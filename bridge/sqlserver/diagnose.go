package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/inspection"
)

// azureDatabase is the EngineEdition of Azure SQL Database.
const azureDatabase = 5

// Diagnose looks at the server, at the database and at the bridge's tables.
func (i *Inspector) Diagnose(ctx context.Context) ([]inspect.Finding, error) {
	d := diagnosis{Inspector: i}
	d.Ledger(ctx, i.ledger)
	for _, part := range []func(context.Context) error{d.server, d.rights, d.oldest} {
		if err := try(ctx, part); err != nil {
			return d.Findings, fmt.Errorf("diagnose: %w", i.classify(err))
		}
	}
	err := try(ctx, func(ctx context.Context) error {
		d.Clock(ctx, i.on.db, clock)
		return ctx.Err()
	})
	d.Backlog(ctx, i.ledger, i)
	return d.Findings, err
}

type diagnosis struct {
	inspection.Findings
	*Inspector
	azure, babelfish bool
}

// properties is the result of serverState.
type properties struct {
	release
	Updateability sql.NullString
	Compatibility int
	Durability    sql.NullString
	RCSI          bool
	Snapshots     string
	Optimized     bool
	Escalation    string
	PageLocks     int   `db:"page_locks"`
	Rows          int64 `db:"row_count"`
	Published     bool
	Merged        int
}

func (d *diagnosis) server(ctx context.Context) error {
	var p properties
	if err := d.on.db.GetContext(ctx, &p, d.on.schema.In(serverState), d.table()); err != nil {
		return err
	}
	peersAt, peersErr := 0, error(nil)
	if p.Published {
		peersErr = d.on.db.GetContext(ctx, &peersAt, peers, d.table())
	}
	d.azure, d.babelfish = p.Edition == azureDatabase, p.Babelfish
	if err := p.check(); err != nil {
		d.Error(inspection.CheckVersion, "use a newer server", "%v", err)
	} else {
		d.OK(inspection.CheckVersion, "%s", p.Product.String)
	}
	d.Expect("compatibility level", p.Compatibility >= minCompatibility, fmt.Sprint(p.Compatibility), inspect.Error,
		fmt.Sprintf("%d, must be at least %d", p.Compatibility, minCompatibility), "ALTER DATABASE CURRENT SET COMPATIBILITY_LEVEL")
	d.Expect(inspection.CheckPrimary, p.Updateability.String == readWrite, "the server takes writes", inspect.Error,
		fmt.Sprintf("the database is %q: a readable secondary, or read-only", p.Updateability.String),
		"connect to the primary, without ApplicationIntent=ReadOnly")
	durability(&d.Findings, p, "forwarded")
	d.primaries(p, peersAt, peersErr)
	d.isolation(p)
	d.locking(p)
	d.OK(inspection.CheckRows, "about %d", p.Rows)
	return d.policies(ctx)
}

// policies looks for row-level security. Babelfish has none.
func (d *diagnosis) policies(ctx context.Context) error {
	if d.babelfish {
		return nil
	}
	var filters int
	if err := d.on.db.GetContext(ctx, &filters, policies, d.table()); err != nil {
		return err
	}
	d.Expect("row-level security", filters == 0, "this login sees no security policy on the table", inspect.Warning,
		"a security policy filters the rows: a row that it hides from the verifier's login looks rolled back, and its message is dropped",
		"let the policy's function return every row to the verifier's login, or drop the filter")
	return nil
}

// DiagnoseInbox checks the durability of a receiver's commits ('Requirements' in the package
// comment). db stays the caller's.
func DiagnoseInbox(ctx context.Context, db *sql.DB) ([]inspect.Finding, error) {
	var p properties
	err := try(ctx, func(ctx context.Context) error {
		return sqlx.NewDb(db, "sqlserver").GetContext(ctx, &p, durabilityState)
	})
	if err != nil {
		return nil, fmt.Errorf("diagnose inbox: %w", err)
	}
	var d inspection.Findings
	durability(&d, p, "acked")
	return d, nil
}

// durability judges whether commits wait for the disk.
func durability(d *inspection.Findings, p properties, done string) {
	if p.Babelfish && !p.Durability.Valid {
		d.Unknown(inspection.CheckDurable, "check that synchronous_commit is not off in PostgreSQL", errDurabilityUnknown)
		return
	}
	d.Expect(inspection.CheckDurable, p.Durability.String == durable, "delayed durability is "+durable, inspect.Error,
		"delayed durability is "+p.Durability.String+": a crash can undo a transaction whose message was "+done,
		"ALTER DATABASE CURRENT SET DELAYED_DURABILITY = "+durable)
}

// primaries judges whether other servers write to the table, and send the rows to this one.
func (d *diagnosis) primaries(p properties, peers int, err error) {
	const check = "more than one primary"
	const fix = "take the bridge's tables out of the replication, or let senders and verifiers use one server only"
	switch {
	case p.Merged > 0:
		d.Error(check, fix, "the table is replicated by merge or with updatable subscriptions: another server's open transactions look rolled back here")
	case peers > 0:
		d.Error(check, fix, "the table is replicated peer to peer: another server's open transactions look rolled back here")
	case err != nil:
		d.Warning(check, fix+", if it is peer-to-peer replication", "the table is published, and the login may not see whether the replication is peer-to-peer: %v", err)
	default:
		d.OK(check, "no replication of the table with several primaries found")
	}
}

func (d *diagnosis) isolation(p properties) {
	level := "READ COMMITTED, with locks"
	if p.RCSI {
		level = "READ COMMITTED, with versions (READ_COMMITTED_SNAPSHOT)"
	}
	d.OK(inspection.CheckIsolation, "%s; SNAPSHOT is %s; the verifier asks for locks either way", level, p.Snapshots)
	d.Expect("lock hints", !p.Babelfish, "the server is not Babelfish, which ignores them", inspect.Warning,
		"Babelfish ignores them: the verifier waits by an INSERT instead, and an own table cannot be used",
		"see 'Where hints are ignored' in the comment of package sqlserver")
}

func (d *diagnosis) locking(p properties) {
	if p.Babelfish { // PostgreSQL has neither lock escalation nor page locks
		return
	}
	d.OK("optimized locking", "%s", map[bool]string{true: "on", false: "off"}[p.Optimized])
	d.Expect("lock escalation", p.Escalation == "DISABLE", "disabled", inspect.Warning,
		fmt.Sprintf("set to %q: after a transaction with thousands of rows, messages wait for it one by one", p.Escalation),
		"ALTER TABLE "+d.table()+" SET (LOCK_ESCALATION = DISABLE)")
	d.Expect("page locks", p.PageLocks == 0, "none; maintenance must rebuild the indexes or leave them out: an index without page locks cannot be reorganized", inspect.Warning,
		fmt.Sprintf("allowed by %d indexes: the non-waiting lookup does not skip them", p.PageLocks),
		"ALTER INDEX ALL ON "+d.table()+" SET (ALLOW_PAGE_LOCKS = OFF)")
}

func (d *diagnosis) rights(ctx context.Context) error {
	type part struct {
		check, values string
		level         inspect.Level
		missing       []string
	}
	parts := []part{
		{check: inspection.CheckRights, values: verifierNeeds, level: inspect.Error},
		{check: inspection.CheckStage, values: stageNeeds, level: inspect.Error},
		{check: inspection.CheckSweep, values: sweepNeeds, level: inspect.Warning},
	}
	if d.ledger.Features().KeepsRows { // nothing is carried or swept
		parts = []part{{check: inspection.CheckRights, values: ownTableNeeds, level: inspect.Error}}
	}
	var name string
	if err := d.on.db.GetContext(ctx, &name, login); err != nil {
		return err
	}
	for i := range parts {
		if err := d.on.db.SelectContext(ctx, &parts[i].missing, d.on.schema.In(fmt.Sprintf(rights, parts[i].values))); err != nil {
			return err
		}
	}
	for _, part := range parts { // only now, since Try may have run this function twice
		d.Missing(part.check, part.level, name, part.missing)
	}
	return nil
}

// oldest tries whether the login may see other sessions, instead of inferring it from its rights:
// these differ between versions and, on Azure, between service tiers.
func (d *diagnosis) oldest(ctx context.Context) error {
	const among = "the transactions that hold a lock to change the table"
	found, err := d.list(ctx, d.on.db, openTransactions, d.table(), int64(0), int64(1))
	if err == nil {
		err = d.seesSessions(ctx)
	}
	if errors.Is(err, errUnseen) {
		fix := "GRANT VIEW SERVER STATE TO the verifier's login; since 2022 VIEW SERVER PERFORMANCE STATE will do"
		if d.azure {
			fix = "GRANT VIEW DATABASE STATE TO the verifier's user; on Basic, S0 and S1 and in elastic pools its login must be a member of ##MS_ServerStateReader##"
		}
		if d.babelfish { // no right to grant
			fix = "look at pg_locks and pg_stat_activity over Babelfish's PostgreSQL port"
		}
		d.Warning(inspection.CheckWatch, fix, "the login may not see other sessions: holders are hidden")
		d.Unknown(inspection.CheckOldest, "the same as for: "+inspection.CheckWatch, errUnseen)
		return nil
	}
	if err != nil {
		return err
	}
	d.OK(inspection.CheckWatch, "all sessions are visible")
	var age sql.NullFloat64
	if len(found) > 0 {
		age = sql.NullFloat64{Float64: max(0, time.Since(found[0].Since).Seconds()), Valid: true}
	}
	d.Oldest(age, among)
	return nil
}

// seesSessions returns errUnseen unless one of the pool's sessions sees another.
func (d *diagnosis) seesSessions(ctx context.Context) error {
	if err := inspection.CheckPool(d.on.db); err != nil {
		return nil // Ledger has reported it
	}
	other, err := d.on.db.Connx(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = other.Close() }()
	var session, seen int64
	if err := other.GetContext(ctx, &session, `SELECT @@SPID`); err != nil {
		return err
	}
	if err := d.on.db.GetContext(ctx, &seen, sessionSeen, session); err != nil {
		return err
	}
	if seen == 0 {
		return errUnseen
	}
	return nil
}

var errDurabilityUnknown = errors.New("the server does not show it: PostgreSQL's synchronous_commit decides")
