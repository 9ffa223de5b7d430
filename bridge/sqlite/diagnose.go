package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/inspection"
)

const (
	// synchronousFull is the value of PRAGMA synchronous = full.
	synchronousFull = 2

	// shortBusy is how many milliseconds a statement should wait for other writers.
	shortBusy = 1000
)

// Diagnose checks the file and one of the pool's connections. It assumes that the other connections
// have the same pragmas.
func (i *Inspector) Diagnose(ctx context.Context) ([]inspect.Finding, error) {
	var d inspection.Findings
	d.Ledger(ctx, i.ledger)
	var p struct {
		Version     string
		Journal     string
		Synchronous int
		BusyTimeout int64 `db:"busy_timeout"`
		Dirty       bool
		File        sql.NullString
		Rows        int64 `db:"row_count"`
	}
	if err := i.db.GetContext(ctx, &p, pragmas); err != nil {
		return d, fmt.Errorf("diagnose: %w", classify(err))
	}
	d.OK(inspection.CheckVersion, "%s", p.Version) // a release that is too old could not have read the tables
	d.Expect("journal", p.Journal == "wal", "wal", inspect.Error, "journal_mode is "+p.Journal+": readers and writers wait for each other",
		"run PRAGMA journal_mode = wal once")
	durability(&d, p.Synchronous, "forwarded", "senders")
	d.Expect(inspection.CheckTimeouts, p.BusyTimeout >= shortBusy, fmt.Sprintf("busy_timeout is %d ms", p.BusyTimeout), inspect.Warning,
		fmt.Sprintf("busy_timeout is %d ms: statements fail when another writer takes longer", p.BusyTimeout),
		"open every connection with PRAGMA busy_timeout of about 5000")
	d.Expect(inspection.CheckIsolation, !p.Dirty, "reads committed rows only", inspect.Error,
		"read_uncommitted is on: lookups refuse to work", "open the connections without PRAGMA read_uncommitted")
	network, err := onNetwork(p.File.String)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		d.Unknown("file system", "check that the file is on a disk of this machine", err)
	case err != nil:
		d.Unknown("file system", "", err)
	default:
		d.Expect("file system", network == "", "not a network file system", inspect.Error, network+": processes on several machines do not see each other's locks",
			"keep the file on a disk of the one machine on which all processes run")
	}
	d.OK(inspection.CheckWatch, "SQLite does not show them: one process holds the file's lock")
	d.OK(inspection.CheckRows, "%d", p.Rows)
	d.Clock(ctx, i.db, clock)
	d.Backlog(ctx, i.ledger, i)
	return d, ctx.Err()
}

// DiagnoseInbox checks the durability of a receiver's commits, at one of the pool's connections. It
// assumes that the other connections have the same pragmas. db stays the caller's.
func DiagnoseInbox(ctx context.Context, db *sql.DB) ([]inspect.Finding, error) {
	var d inspection.Findings
	var level int
	if err := db.QueryRowContext(ctx, synchronous).Scan(&level); err != nil {
		return nil, fmt.Errorf("diagnose inbox: %w", err)
	}
	durability(&d, level, "acked", "receivers")
	return d, nil
}

// durability judges the value of PRAGMA synchronous.
func durability(d *inspection.Findings, synchronous int, done, others string) {
	d.Expect(inspection.CheckDurable, synchronous >= synchronousFull, "synchronous is full", inspect.Error,
		fmt.Sprintf("synchronous is %s: a crash of the machine can undo a transaction whose message was %s", levelName(synchronous), done),
		fmt.Sprintf("open every connection with PRAGMA synchronous = full, also in the %s", others))
}

func levelName(synchronous int) string {
	if synchronous == 0 {
		return "off"
	}
	return "normal"
}
