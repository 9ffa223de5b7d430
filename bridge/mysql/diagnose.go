package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/inspection"
)

// A right, and a statement that only a login with that right may EXPLAIN. Nothing is run.
type right struct{ name, explain string }

var (
	// The proof of an own table writes its canaries into bridge_ledger.
	ownTableRights = []right{
		{"SELECT ON bridge_ledger", `SELECT id FROM bridge_ledger WHERE id = ''`},
		{"INSERT ON bridge_ledger", `INSERT INTO bridge_ledger (id) VALUES ('')`},
		{"DELETE ON bridge_ledger", `DELETE FROM bridge_ledger WHERE id = ''`},
		{"SELECT ON bridge_identity", `SELECT one FROM bridge_identity`},
		{"SELECT ON bridge_ledger_version", `SELECT version_id FROM bridge_ledger_version`},
	}
	watermarkRights = []right{
		{"SELECT ON bridge_watermark", `SELECT one FROM bridge_watermark`},
	}
	stageRights = []right{
		{"UPDATE (stage_at, claimed_by) ON bridge_ledger", `UPDATE bridge_ledger SET stage_at = stage_at, claimed_by = claimed_by WHERE id = ''`},
	}
	sweepRights = []right{
		{"UPDATE ON bridge_watermark", `UPDATE bridge_watermark SET swept_before = swept_before WHERE one = 1`},
	}
)

const (
	shortTimeout = 30 * time.Second
	shortIdle    = 30 * time.Second // the proof may keep a transaction idle for as long
	wantedPacket = 22 << 20         // a message of 16 MiB in base64, with its headers
)

// Diagnose looks at the server, at the login's session and at the bridge's tables.
func (i *Inspector) Diagnose(ctx context.Context) ([]inspect.Finding, error) {
	d := diagnosis{db: i.on.db, keeps: i.ledger.Features().KeepsRows, variables: make(map[string]string)}
	d.Ledger(ctx, i.ledger)
	for _, part := range []func(context.Context) error{d.read, d.tables, d.rights, d.transactions} {
		if err := part(ctx); err != nil {
			return d.Findings, fmt.Errorf("diagnose: %w", classify(err))
		}
	}
	d.server()
	d.durability("forwarded")
	d.binaryLog()
	d.session()
	d.Clock(ctx, i.on.db, clock)
	d.Backlog(ctx, i.ledger, i)
	return d.Findings, ctx.Err()
}

// DiagnoseInbox checks the server of a receiver's database ('Requirements' in the package comment).
// db stays the caller's.
func DiagnoseInbox(ctx context.Context, db *sql.DB) ([]inspect.Finding, error) {
	d := diagnosis{db: sqlx.NewDb(db, "mysql"), variables: make(map[string]string)}
	if err := d.read(ctx); err != nil {
		return nil, fmt.Errorf("diagnose inbox: %w", err)
	}
	d.durability("acked")
	d.Expect(checkLog, d.waitsForLog(), "commits wait for it", inspect.Warning,
		"commits wait for no binary log in files: a crash of the server can undo a receiver's transaction after another receiver saw its claim",
		"in the configuration set log_bin and sync_binlog = 1, and leave binlog_storage_engine unset")
	return d.Findings, nil
}

type diagnosis struct {
	inspection.Findings
	db        *sqlx.DB
	keeps     bool              // an own table: nothing is carried or swept
	variables map[string]string // by lower-case names
}

func (d *diagnosis) read(ctx context.Context) error {
	for _, query := range []string{globals, session, status} {
		var rows []struct {
			Name  string `db:"Variable_name"`
			Value string `db:"Value"`
		}
		if err := d.db.SelectContext(ctx, &rows, query); err != nil {
			return err
		}
		for _, r := range rows {
			d.variables[strings.ToLower(r.Name)] = r.Value
		}
	}
	return nil
}

// isOn reports whether the server has the variable, and has it on.
func (d *diagnosis) isOn(name string) bool {
	value, known := d.variables[name]
	return known && !isOff(value)
}

// number returns a variable's number, 0 if there is none.
func (d *diagnosis) number(name string) int64 {
	n, _ := strconv.ParseInt(d.variables[name], 10, 64)
	return n
}

func (d *diagnosis) server() {
	version := d.variables["version"]
	d.Expect(inspection.CheckVersion, supported(version), version, inspect.Error,
		version+", must be at least MySQL 8.0.16 or MariaDB 10.6", "use a newer server")
	var why []string
	for _, name := range []string{"read_only", "super_read_only", "innodb_read_only"} {
		if d.isOn(name) {
			why = append(why, name+" is "+d.variables[name])
		}
	}
	d.Expect(inspection.CheckPrimary, len(why) == 0, "the server takes writes", inspect.Error, strings.Join(why, ", "), "connect to the primary")
	several := d.isOn("wsrep_on")
	if mode, known := d.variables["group_replication_single_primary_mode"]; known && isOff(mode) {
		several = true
	}
	d.Expect("one writing node", !several, "no cluster of several writing nodes found", inspect.Error,
		"several nodes take writes (Galera, or group replication): no node waits for another's locks, so another node's open transactions look rolled back",
		"keep the ledger in a database with one primary")
	if d.variables["group_replication_group_name"] != "" {
		level := d.variables["group_replication_consistency"]
		d.Expect("group replication", !strings.EqualFold(level, "EVENTUAL"), "group_replication_consistency is "+level, inspect.Error,
			"group_replication_consistency is EVENTUAL: a newly elected primary shows its state before it has applied the old primary's transactions, and these look rolled back",
			"SET PERSIST group_replication_consistency = 'BEFORE_ON_PRIMARY_FAILOVER' on every member")
	}
	d.semiSync()
	left, limit := d.number("max_connections")-d.number("threads_connected"), d.number("max_connections")
	if most := d.number("max_user_connections"); most > 0 {
		left, limit = min(left, most), min(limit, most)
	}
	d.Connections(left, limit)
	d.Expect("errors in transactions", !d.isOn("innodb_rollback_on_timeout"), "a time-out undoes only its statement", inspect.Warning,
		"innodb_rollback_on_timeout is on: after an error 1205 a sender's further statements commit one by one",
		"turn it off, or make every sender stop after an error")
}

// semiSync judges when others see a commit that waits for a replica. MySQL's newer plugins call the
// primary a source.
func (d *diagnosis) semiSync() {
	for _, role := range []string{"master", "source"} {
		name := "rpl_semi_sync_" + role + "_wait_point"
		if point := d.variables[name]; d.isOn("rpl_semi_sync_" + role + "_enabled") {
			d.Expect("semi-synchronous replication", point == "AFTER_SYNC", name+" is "+point, inspect.Warning,
				name+" is "+point+": other sessions see a transaction before the replica has it, and a failover can undo it afterwards",
				"SET GLOBAL "+name+" = AFTER_SYNC, and in the configuration")
		}
	}
}

// supported reports whether the package supports the version.
func supported(version string) bool {
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); err != nil {
		return false
	}
	found, oldest := []int{major, minor, patch}, []int{8, 0, 16}
	if isMariaDB(version) {
		oldest = []int{10, 6, 0}
	}
	return slices.Compare(found, oldest) >= 0
}

// durability judges whether a crash can undo a transaction after its message has been forwarded or
// acked.
func (d *diagnosis) durability(done string) {
	flush := d.variables["innodb_flush_log_at_trx_commit"]
	// MariaDB's 3 is safer than 1.
	d.Expect(inspection.CheckDurable, flush == "1" || flush == "3", "innodb_flush_log_at_trx_commit is "+flush, inspect.Error,
		"innodb_flush_log_at_trx_commit is "+flush+": a crash of the machine can undo a transaction whose message was "+done,
		"SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the configuration")
	d.Expect("torn pages", d.isOn("innodb_doublewrite") || d.variables["innodb_doublewrite"] == "", "innodb_doublewrite is on", inspect.Warning,
		"innodb_doublewrite is off: a crash of the machine can damage pages, unless the disk writes them whole", "turn it on")
}

const checkLog = "binary log"

// waitsForLog reports whether a commit is on the disk before others see it ('Durability' in the package
// comment).
func (d *diagnosis) waitsForLog() bool {
	return d.isOn("log_bin") && d.variables["sync_binlog"] == "1" && d.variables["binlog_storage_engine"] == ""
}

func (d *diagnosis) binaryLog() {
	switch {
	case !d.isOn("log_bin"):
		d.OK(checkLog, "off: a verifier flushes the server's log before it forwards; a receiver's server needs a binary log")
	case strings.EqualFold(d.variables["binlog_format"], "STATEMENT"):
		d.Error(checkLog, "set binlog_format to ROW or MIXED", "binlog_format is STATEMENT: the server refuses to delete at READ COMMITTED")
	case d.variables["binlog_storage_engine"] != "":
		d.OK(checkLog, "within InnoDB: a verifier flushes the server's log before it forwards; a receiver's server needs a binary log in files")
	case !d.waitsForLog():
		d.Warning(checkLog, "SET GLOBAL sync_binlog = 1, and in the configuration",
			"sync_binlog is %s: after a crash of the machine a replica may differ, or a receiver's transaction be undone after another receiver saw its claim", d.variables["sync_binlog"])
	default:
		d.OK(checkLog, "%s, sync_binlog is 1", d.variables["binlog_format"])
	}
}

func (d *diagnosis) session() {
	level := d.variables["transaction_isolation"]
	if level == "" {
		level = d.variables["tx_isolation"]
	}
	d.OK(inspection.CheckIsolation, "%s; the verifier sets its own", level)
	var short []string
	add := func(name string, value, limit time.Duration) {
		if value > 0 && value < limit {
			short = append(short, fmt.Sprintf("%s is %v", name, value))
		}
	}
	seconds, _ := strconv.ParseFloat(d.variables["max_statement_time"], 64)
	add("max_statement_time", time.Duration(seconds*float64(time.Second)), shortTimeout)
	add("max_execution_time", time.Duration(d.number("max_execution_time"))*time.Millisecond, shortTimeout)
	add("wait_timeout", time.Duration(d.number("wait_timeout"))*time.Second, shortIdle)
	d.Expect(inspection.CheckTimeouts, len(short) == 0, "none interrupts the verifier's work", inspect.Warning,
		strings.Join(short, ", ")+": it can interrupt a settle, a sweep or the proof, which then starts again",
		"raise them for the verifier; it bounds its waits itself")
	packet := d.number("max_allowed_packet")
	d.Expect("size of a carried message", packet >= wantedPacket, fmt.Sprintf("must be somewhat smaller than three quarters of max_allowed_packet, %d", packet), inspect.Warning,
		fmt.Sprintf("max_allowed_packet is %d, and a carried message must be somewhat smaller than three quarters of it, %d", packet, packet*3/4),
		fmt.Sprintf("set max_allowed_packet to %d or more, which messages of 16 MiB need, or keep sender.Options.MaxMessageBytes below %d", wantedPacket, packet*3/4))
}

func (d *diagnosis) tables(ctx context.Context) error {
	var all []struct {
		Name, Engine string
		Rows         int64 `db:"row_count"`
	}
	if err := d.db.SelectContext(ctx, &all, engines); err != nil {
		return err
	}
	var others []string
	for _, t := range all {
		if t.Engine != "InnoDB" {
			others = append(others, t.Name+" is "+t.Engine)
		}
		if t.Name == "bridge_ledger" {
			d.OK(inspection.CheckRows, "about %d", t.Rows)
		}
	}
	d.Expect("engine", len(others) == 0, "InnoDB", inspect.Error, strings.Join(others, ", ")+": an engine without transactions", "ALTER TABLE … ENGINE = InnoDB")
	return nil
}

func (d *diagnosis) rights(ctx context.Context) error {
	var name string
	if err := d.db.GetContext(ctx, &name, login); err != nil {
		return err
	}
	type part struct {
		check  string
		rights []right
		level  inspect.Level
	}
	needed := []part{
		{inspection.CheckRights, slices.Concat(ownTableRights, watermarkRights), inspect.Error},
		{inspection.CheckStage, stageRights, inspect.Error},
		{inspection.CheckSweep, sweepRights, inspect.Warning},
	}
	if d.keeps {
		needed = []part{{inspection.CheckRights, ownTableRights, inspect.Error}}
	}
	for _, part := range needed {
		var missing []string
		for _, r := range part.rights {
			_, err := d.db.ExecContext(ctx, "EXPLAIN "+r.explain)
			switch errorNumber(err) {
			case missingTableRight, missingColumnRight:
				missing = append(missing, r.name)
			case noSuchTable: // Check reports that
			default:
				if err != nil && ctx.Err() != nil {
					return err
				}
			}
		}
		d.Missing(part.check, part.level, name, missing)
	}
	return nil
}

func (d *diagnosis) transactions(ctx context.Context) error {
	var seconds sql.NullFloat64
	err := d.db.GetContext(ctx, &seconds, oldest)
	switch n := errorNumber(err); {
	case n == missingRight || n == missingTableRight:
		d.Warning(inspection.CheckWatch, "GRANT PROCESS ON *.* TO the verifier's login", "the login lacks PROCESS: holders are hidden")
		d.Unknown(inspection.CheckOldest, "GRANT PROCESS ON *.* TO the verifier's login", err)
		return nil
	case err != nil:
		return err
	}
	d.Oldest(seconds, "the sessions of this database")
	if !isMariaDB(d.variables["version"]) { // on MariaDB information_schema has it
		_, err = d.db.ExecContext(ctx, "EXPLAIN SELECT 1 FROM performance_schema.data_lock_waits")
	}
	switch n := errorNumber(err); {
	case n == missingTableRight:
		d.Warning(inspection.CheckWatch, "GRANT SELECT ON performance_schema.* TO the verifier's login",
			"the login lacks SELECT ON performance_schema.data_lock_waits: holders are hidden")
	case err != nil:
		return err
	case !d.isOn("performance_schema"):
		d.OK(inspection.CheckWatch, "all sessions are visible; without performance_schema their programs are hidden, and so are the statements of idle sessions")
	default:
		d.OK(inspection.CheckWatch, "all sessions are visible")
	}
	return nil
}
