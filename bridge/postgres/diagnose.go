package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/inspection"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

const (
	minVersion = 130000
	// manyDead is how many dead rows get a warning, if they are many times the live ones.
	manyDead     = 100_000
	deadPerLive  = 10
	minQuerySize = 512
	shortTimeout = 30 * time.Second // a settle, or a Sweep's list, may take as long
	shortIdle    = 30 * time.Second // the proof may keep a transaction idle for as long
	serializable = "serializable"
)

// Diagnose checks the server, the login's settings and the bridge's tables.
func (i *Inspector) Diagnose(ctx context.Context) ([]inspect.Finding, error) {
	d := diagnosis{db: i.on.db, schema: i.on.schema, keeps: i.ledger.Features().KeepsRows}
	d.Ledger(ctx, i.ledger)
	for _, part := range []func(context.Context) error{d.server, d.tables, d.rights} {
		if err := part(ctx); err != nil {
			return d.Findings, fmt.Errorf("diagnose: %w", i.on.classify(err))
		}
	}
	d.Clock(ctx, i.on.db, clock)
	d.Backlog(ctx, i.ledger, i)
	return d.Findings, ctx.Err()
}

// DiagnoseInbox checks the durability of a receiver's commits, by the settings of db's login
// ('Requirements' in the package comment). db stays the caller's.
func DiagnoseInbox(ctx context.Context, db *sql.DB) ([]inspect.Finding, error) {
	d := diagnosis{db: sqlx.NewDb(db, "postgres")}
	err := d.readSettings(ctx)
	if err == nil {
		err = d.durability(ctx, receiving)
	}
	if err != nil {
		return nil, fmt.Errorf("diagnose inbox: %w", err)
	}
	return d.Findings, nil
}

// A commitment names the role whose commits must be durable, and the reason.
type commitment struct{ role, done, fix string }

var (
	sending   = commitment{"sends", "forwarded", "ALTER ROLE … SET synchronous_commit = on, for every role that sends; Forget turns it off for itself"}
	receiving = commitment{"receives", "acked", "ALTER ROLE … SET synchronous_commit = on, for every role that receives"}
)

type diagnosis struct {
	inspection.Findings
	db       *sqlx.DB
	schema   schema.Name
	keeps    bool // an own table: nothing is carried or swept
	settings map[string]string
}

// on reports whether a setting is on, or anything except off.
func (d *diagnosis) on(name string) bool { return d.settings[name] != "off" }

// number returns a setting's number, 0 if there is none.
func (d *diagnosis) number(name string) (n int64) {
	_, _ = fmt.Sscan(d.settings[name], &n)
	return n
}

func (d *diagnosis) server(ctx context.Context) error {
	var s struct {
		Number           int
		Version          string
		Standby          bool
		SeesOthers       bool  `db:"sees_others"`
		RoleLimit        int64 `db:"role_limit"`
		DatabaseLimit    int64 `db:"database_limit"`
		Used             int64
		UsedDatabase     int64 `db:"used_database"`
		UsedRole         int64 `db:"used_role"`
		Oldest, Prepared sql.NullFloat64
	}
	if err := d.db.GetContext(ctx, &s, serverState); err != nil {
		return err
	}
	if err := d.readSettings(ctx); err != nil {
		return err
	}
	d.Expect(inspection.CheckVersion, s.Number >= minVersion, s.Version, inspect.Error, s.Version+", must be at least 13", "use a newer server")
	d.Expect(inspection.CheckPrimary, !s.Standby, "the server is not in recovery", inspect.Error, "the server is in recovery: a standby", "connect to the primary")
	var several string
	if err := d.db.GetContext(ctx, &several, multimaster); err != nil {
		return err
	}
	d.Expect("one writing node", several == "", "no extension for several writing nodes found", inspect.Warning,
		"extension "+several+" lets several nodes take writes: no node waits for another's locks, so another node's open transactions look rolled back",
		"let all senders and verifiers use one node, and keep bridge_ledger out of the replication")
	if err := d.durability(ctx, sending); err != nil {
		return err
	}
	d.isolation()
	d.timeouts()
	left := d.number("max_connections") - d.number("superuser_reserved_connections") - d.number("reserved_connections")
	limit := left
	left -= s.Used
	if s.DatabaseLimit >= 0 {
		left, limit = min(left, s.DatabaseLimit-s.UsedDatabase), min(limit, s.DatabaseLimit)
	}
	if s.RoleLimit >= 0 {
		left, limit = min(left, s.RoleLimit-s.UsedRole), min(limit, s.RoleLimit)
	}
	d.Connections(left, limit)
	d.watching(s.SeesOthers)
	among := "the sessions of this database"
	if !s.SeesOthers {
		among = "the sessions of this login, which may not see other logins' times"
	}
	d.Oldest(s.Oldest, among)
	if s.Prepared.Valid && s.Prepared.Float64 > inspection.LongOpen.Seconds() {
		d.Warning("prepared transactions", "end each transaction in pg_prepared_xacts with COMMIT PREPARED or ROLLBACK PREPARED",
			"one is %v old: it stays open when its session ends", time.Duration(s.Prepared.Float64)*time.Second)
	}
	return nil
}

func (d *diagnosis) readSettings(ctx context.Context) error {
	var rows []struct{ Name, Setting string }
	if err := d.db.SelectContext(ctx, &rows, settings); err != nil {
		return err
	}
	d.settings = make(map[string]string)
	for _, r := range rows {
		d.settings[r.Name] = r.Setting
	}
	return nil
}

func (d *diagnosis) durability(ctx context.Context, of commitment) error {
	for _, name := range []string{"fsync", "full_page_writes"} {
		d.Expect(name, d.on(name), "on", inspect.Error, "off: a crash of the machine can lose or damage committed data",
			"set "+name+" = on in postgresql.conf and reload")
	}
	var others []string
	if err := d.db.SelectContext(ctx, &others, relaxed); err != nil {
		return err
	}
	level, replicated := d.settings["synchronous_commit"], d.settings["synchronous_standby_names"] != ""
	switch {
	case level == "off":
		d.Error(inspection.CheckDurable, of.fix, "synchronous_commit is off for this login: a crash can undo a transaction whose message was %s", of.done)
	case len(others) > 0:
		d.Warning(inspection.CheckDurable, of.fix, "synchronous_commit is %s here, and off for %s: if one of them %s, a crash can undo a transaction whose message was %s",
			level, strings.Join(others, ", "), of.role, of.done)
	case replicated && level == "local":
		d.Warning(inspection.CheckDurable, of.fix, "synchronous_commit is local: a failover can undo a transaction whose message was %s", of.done)
	default:
		d.OK(inspection.CheckDurable, "synchronous_commit is %s", level)
	}
	return nil
}

func (d *diagnosis) isolation() {
	level := d.settings["default_transaction_isolation"]
	d.Expect(inspection.CheckIsolation, level != serializable, level, inspect.Warning,
		"default_transaction_isolation is serializable: lookups and senders may fail each other's transactions",
		"ALTER ROLE … SET default_transaction_isolation = 'read committed' for the verifier")
}

func (d *diagnosis) timeouts() {
	short := func(name string, limit time.Duration) string {
		ms := time.Duration(d.number(name)) * time.Millisecond
		if ms == 0 || ms >= limit {
			return ""
		}
		return fmt.Sprintf("%s is %v", name, ms)
	}
	var found []string
	for _, text := range []string{
		short("statement_timeout", shortTimeout),
		short("transaction_timeout", shortIdle),
		short("idle_in_transaction_session_timeout", shortIdle),
	} {
		if text != "" {
			found = append(found, text)
		}
	}
	d.Expect(inspection.CheckTimeouts, len(found) == 0, "none interrupts the verifier's work", inspect.Warning,
		strings.Join(found, ", ")+": it can interrupt a settle, a sweep or the proof, which then starts again",
		"ALTER ROLE … SET them to 0 for the verifier; it bounds its waits itself")
}

func (d *diagnosis) watching(seesOthers bool) {
	switch {
	case !d.on("track_activities"):
		d.Warning(inspection.CheckWatch, "set track_activities = on", "track_activities is off: state, time and statement are hidden")
	case !seesOthers:
		d.Warning(inspection.CheckWatch, "GRANT pg_read_all_stats TO the verifier's login",
			"the login is not in pg_read_all_stats: of other logins' sessions it sees only number, login and program")
	case d.number("track_activity_query_size") < minQuerySize:
		d.Warning(inspection.CheckWatch, "raise track_activity_query_size", "statements are cut after %s bytes", d.settings["track_activity_query_size"])
	default:
		d.OK(inspection.CheckWatch, "all sessions are visible")
	}
}

func (d *diagnosis) tables(ctx context.Context) error {
	var all []struct {
		Name        string
		Unlogged    bool
		RowSecurity bool `db:"row_security"`
		NoVacuum    bool `db:"no_vacuum"`
		Rows, Dead  int64
	}
	if err := d.db.SelectContext(ctx, &all, d.schema.In(bridgeTables)); err != nil {
		return err
	}
	var unlogged, hidden, unkept []string
	for _, t := range all {
		if t.Unlogged {
			unlogged = append(unlogged, t.Name)
		}
		if t.RowSecurity {
			hidden = append(hidden, t.Name)
		}
		if t.NoVacuum {
			unkept = append(unkept, t.Name)
		}
		if t.Name == "bridge_ledger" {
			d.Expect(inspection.CheckRows, t.Dead < manyDead || t.Dead < deadPerLive*t.Rows, fmt.Sprintf("about %d, and %d dead rows", t.Rows, t.Dead),
				inspect.Warning, fmt.Sprintf("about %d, and %d dead rows: lookups read past them", t.Rows, t.Dead),
				d.schema.In("VACUUM bridge_ledger")+"; find the old transaction or the replication slot that keeps them")
		}
	}
	d.Expect("logged tables", len(unlogged) == 0, "all are", inspect.Error,
		strings.Join(unlogged, ", ")+": unlogged; a crash empties it, and committed messages are dropped", "ALTER TABLE … SET LOGGED")
	d.Expect("row-level security", len(hidden) == 0, "none applies to this login", inspect.Error,
		strings.Join(hidden, ", ")+": hidden rows look rolled back", "ALTER TABLE … DISABLE ROW LEVEL SECURITY, or give the login BYPASSRLS")
	if !d.on("autovacuum") {
		unkept = append(unkept, "the whole server")
	}
	d.Expect("autovacuum", len(unkept) == 0, "on", inspect.Warning, "off for "+strings.Join(unkept, ", "),
		"turn it on: every message leaves a dead row")
	return nil
}

func (d *diagnosis) rights(ctx context.Context) error {
	type part struct {
		check, values string
		level         inspect.Level
	}
	needed := []part{
		{inspection.CheckRights, verifierRights, inspect.Error},
		{inspection.CheckStage, stageRights, inspect.Error},
		{inspection.CheckSweep, sweepRights, inspect.Warning},
	}
	if d.keeps {
		needed = []part{{inspection.CheckRights, ownTableRights, inspect.Error}}
	}
	var name string
	if err := d.db.GetContext(ctx, &name, login); err != nil {
		return err
	}
	for _, part := range needed {
		var missing []string
		if err := d.db.SelectContext(ctx, &missing, d.schema.In(fmt.Sprintf(rights, part.values))); err != nil {
			return err
		}
		d.Missing(part.check, part.level, name, missing)
	}
	return nil
}
