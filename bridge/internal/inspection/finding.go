// Package inspection is the common part of the inspectors of all databases: the findings of a
// Diagnose, and the wait of Holders.
package inspection

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
)

// Findings are the findings of a Diagnose.
type Findings []inspect.Finding

// OK notes that the check is passed.
func (f *Findings) OK(check, format string, args ...any) {
	f.add(check, inspect.OK, "", format, args...)
}

// Warning notes a setting that works, but costs something or may fail later.
func (f *Findings) Warning(check, fix, format string, args ...any) {
	f.add(check, inspect.Warning, fix, format, args...)
}

// Error notes a setting that loses messages, or stops everything.
func (f *Findings) Error(check, fix, format string, args ...any) {
	f.add(check, inspect.Error, fix, format, args...)
}

// Unknown notes that the check has no result: the login may not look, or the server does not show the
// setting.
func (f *Findings) Unknown(check, fix string, err error) {
	f.add(check, inspect.Unknown, fix, "%v", err)
}

// Expect notes good as OK if the check holds, and otherwise bad at that level, with its fix.
func (f *Findings) Expect(check string, holds bool, good string, level inspect.Level, bad, fix string) {
	if holds {
		f.OK(check, "%s", good)
		return
	}
	f.add(check, level, fix, "%s", bad)
}

func (f *Findings) add(check string, level inspect.Level, fix, format string, args ...any) {
	*f = append(*f, inspect.Finding{Check: check, Level: level, Text: fmt.Sprintf(format, args...), Fix: fix})
}

// The checks of all databases.
const (
	checkLedger = "ledger"
	checkPool   = "connection pool"
	checkClock  = "clock"
	CheckOldest = "oldest open transaction"
	checkOrphan = "orphans"
	checkDue    = "carried messages"
	checkDelay  = "delayed messages"

	CheckVersion   = "server version"
	CheckPrimary   = "primary"
	CheckDurable   = "durability"
	CheckIsolation = "isolation"
	checkConnect   = "connections left"
	CheckRights    = "rights of a verifier"
	CheckStage     = "rights to stage again"
	CheckSweep     = "rights to sweep"
	CheckWatch     = "holders of a row"
	CheckTimeouts  = "time-outs"
	CheckRows      = "rows in the ledger"
)

// needConnections is how many connections cmd/verifier uses with default options, and so how many
// must be left.
const needConnections = 27

// LongOpen is how long a transaction may be open without a warning.
const LongOpen = time.Hour

// Ledger notes the result of Check.
func (f *Findings) Ledger(ctx context.Context, ledger driver.RecordedRows) {
	if err := ledger.Check(ctx); err != nil {
		f.Error(checkLedger, "see the text; a verifier does not start until this is fixed", "%v", err)
	} else {
		f.OK(checkLedger, "identity %s", ledger.Identity())
	}
	if ledger.DB().Stats().MaxOpenConnections == 1 {
		f.Error(checkPool, "raise SetMaxOpenConns: a verifier needs one for each settle, and a few more", "%v", errOneConnection)
	}
}

// The tolerated differences between the clocks. They are far below the half hour that a verifier's
// sweep allows for ('The sweep' in package driver).
const (
	clockWarning = time.Second
	clockError   = time.Minute
)

// Clock compares the database's clock, in milliseconds since 1970, with this process's.
func (f *Findings) Clock(ctx context.Context, db *sqlx.DB, query string) {
	const fix = "set both clocks by NTP; a sweep of orphans relies on clocks that differ by less than 30 minutes"
	before := time.Now()
	var ms int64
	if err := db.GetContext(ctx, &ms, query); err != nil {
		f.Unknown(checkClock, "", err)
		return
	}
	f.clock(time.UnixMilli(ms), before, time.Now(), fix)
}

// clock judges a time that was read between before and after. The clocks differ only if it lies
// outside of the two.
func (f *Findings) clock(theirs, before, after time.Time, fix string) {
	var difference time.Duration
	switch {
	case theirs.Before(before.Truncate(time.Millisecond)):
		difference = theirs.Sub(before)
	case theirs.After(after):
		difference = theirs.Sub(after)
	}
	text := fmt.Sprintf("the database's clock differs from this machine's by %v", difference.Round(time.Millisecond))
	switch {
	case difference.Abs() > clockError:
		f.Error(checkClock, fix, "%s", text)
	case difference.Abs() > clockWarning:
		f.Warning(checkClock, fix, "%s", text)
	default:
		f.OK(checkClock, "%s", text)
	}
}

// The limits above which a backlog gets a warning.
const (
	orphanAge   = 7 * 24 * time.Hour
	mostOrphans = 1000
	mostDue     = 500
	mostCarried = 10_000
	longDue     = 5 * time.Minute
)

// Backlog counts orphans and carried rows, and the due and the delayed rows among these.
func (f *Findings) Backlog(ctx context.Context, ledger driver.RecordedRows, carried inspect.CarriedReader) {
	features := ledger.Features()
	if features.Sweeps {
		orphans, err := ledger.Orphans(ctx, orphanAge, mostOrphans)
		switch {
		case err != nil:
			f.Unknown(checkOrphan, "", err)
		case len(orphans) > 0:
			f.Warning(checkOrphan, "check that no operator purges a queue and no policy expires messages; send messages that a receiver lacks again, from your own data; only then sweep by hand, or let a verifier sweep",
				"rows more than %[2]v days old: %[1]s; the database lost a deletion in a crash, a verifier died during its proof, or messages of committed transactions were lost before they were forwarded",
				atLeast(len(orphans), mostOrphans), orphanAge.Hours()/24)
		default:
			f.OK(checkOrphan, "rows more than %v days old: none", orphanAge.Hours()/24)
		}
	}
	if features.Carries {
		due, now, err := ledger.Due(ctx, driver.DueRow{}, mostDue)
		all := 0
		if err == nil {
			all, err = carried.CountCarried(ctx, mostCarried)
		}
		if err != nil {
			f.Unknown(checkDue, "", err)
			return
		}
		f.due(all, due, now)
		f.delayed(ctx, carried, due, now)
	}
}

// delayed notes messages that wait for their time, and the first due row that no verifier has
// claimed.
func (f *Findings) delayed(ctx context.Context, carried inspect.CarriedReader, due []driver.DueRow, now time.Time) {
	waiting := 0
	next, err := carried.DelayedRows(ctx, 1)
	if err == nil && len(next) > 0 {
		waiting, err = carried.CountDelayed(ctx, mostCarried)
	}
	if err != nil {
		f.Unknown(checkDelay, "", err)
		return
	}
	text := "wait for their time: " + atLeast(max(waiting, len(next)), mostCarried)
	if len(next) > 0 {
		text += fmt.Sprintf("; the next, %s, until %s", next[0].ID, next[0].StageAt.Format(time.RFC3339))
	}
	if i := slices.IndexFunc(due, driver.DueRow.Unpublished); i >= 0 {
		text += fmt.Sprintf("; due and not yet staged (delayed, or recorded while the broker was out): the first, %s, for %v", due[i].ID, now.Sub(due[i].StageAt).Round(time.Second))
	}
	f.OK(checkDelay, "%s", text)
}

// due judges by the first due row.
func (f *Findings) due(all int, due []driver.DueRow, now time.Time) {
	text := "rows hold messages: " + atLeast(max(all, len(due)), mostCarried)
	if len(due) == 0 {
		f.OK(checkDue, "%s; past their stage time: none", text)
		return
	}
	age := now.Sub(due[0].StageAt).Round(time.Second)
	text += fmt.Sprintf("; past their stage time: %s; the first, %s, for %v", atLeast(len(due), mostDue), due[0].ID, age)
	if age > longDue {
		f.Warning(checkDue, "check that the staging queue is short, and that a verifier has a session and may stage messages again ("+CheckStage+", and job=stage in its log)",
			"%s; no message is lost while its row is there", text)
		return
	}
	f.OK(checkDue, "%s", text)
}

func atLeast(n, limit int) string {
	if n == limit {
		return fmt.Sprintf("%d or more", n)
	}
	return fmt.Sprint(n)
}

// Connections judges the number of connections left at the server.
func (f *Findings) Connections(left, limit int64) {
	text := fmt.Sprintf("%d of %d", left, limit)
	if left < needConnections {
		f.Warning(checkConnect, fmt.Sprintf("a verifier with default options needs up to %d: raise the server's limit, or lower Settlers", needConnections),
			"%s", text)
		return
	}
	f.OK(checkConnect, "%s", text)
}

// Oldest judges the age of the oldest open transaction.
func (f *Findings) Oldest(seconds sql.NullFloat64, among string) {
	age := time.Duration(seconds.Float64 * float64(time.Second)).Round(time.Second)
	switch {
	case !seconds.Valid:
		f.OK(CheckOldest, "none, among %s", among)
	case age > LongOpen:
		f.Warning(CheckOldest, "end it: until then its messages wait and take memory, and clean-up is delayed", "%v, among %s", age, among)
	default:
		f.OK(CheckOldest, "%v, among %s", age, among)
	}
}

// cost is the consequence of missing rights.
var cost = map[string]string{
	CheckStage: ": a carried message whose staged copy is lost, or was never published, waits for a verifier that has this right",
}

// Missing notes the missing rights, each in the words of GRANT. login is the login's name in SQL.
func (f *Findings) Missing(check string, level inspect.Level, login string, missing []string) {
	if len(missing) == 0 {
		f.OK(check, "all there")
		return
	}
	f.add(check, level, grants(login, missing), "the login lacks %s%s", strings.Join(missing, ", "), cost[check])
}

// grants returns the statements that grant rights, a line for each table.
func grants(login string, rights []string) string {
	var tables, statements []string
	names := make(map[string][]string)
	for _, right := range rights {
		name, table, _ := strings.Cut(right, " ON ")
		if names[table] == nil {
			tables = append(tables, table)
		}
		names[table] = append(names[table], name)
	}
	for _, table := range tables {
		if there, _, missing := strings.Cut(table, " ("); missing {
			statements = append(statements, "run the statement that creates "+there+": bridgectl migrate print shows it")
			continue
		}
		statements = append(statements, "GRANT "+strings.Join(names[table], ", ")+" ON "+table+" TO "+login+";")
	}
	return strings.Join(statements, "\n")
}
