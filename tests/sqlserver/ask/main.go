// Ask settles, on a real SQL Server or Azure SQL Database, what no document says and no
// stand-in can know. It prints what it expects and what it got, for whoever has a server:
//
//	go run ./tests/sqlserver/ask 'sqlserver://user:password@host?database=scratch'
//
// Without an argument it takes BRIDGE_TEST_SQLSERVER_URL. The database must have none of
// the bridge's tables; ask makes them and drops them. The login needs the right to do so,
// and, for the questions about plans and holders, to see other sessions (VIEW SERVER STATE;
// in Azure SQL Database, VIEW DATABASE STATE).
//
// Run it with READ_COMMITTED_SNAPSHOT ON and OFF, and where there is optimized locking with
// that ON and OFF too; send what it prints to the project.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	_ "github.com/microsoft/go-mssqldb" // driver

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/inspect/sqlserverinspect"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
)

func main() {
	url := os.Getenv("BRIDGE_TEST_SQLSERVER_URL")
	if len(os.Args) > 1 {
		url = os.Args[1]
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	different, err := ask(ctx, os.Stdout, url)
	if err != nil {
		fmt.Fprintln(os.Stderr, "ask:", err)
		os.Exit(2)
	}
	if different > 0 {
		os.Exit(1)
	}
}

// patience bounds each question.
const patience = time.Minute

// ask prints the answers, and returns how many are not as expected.
func ask(ctx context.Context, out io.Writer, url string) (different int, err error) {
	db, err := sql.Open("sqlserver", url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = db.Close() }()
	w := &world{db: db}
	if err := w.set(ctx); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.clear()) }()
	for i, q := range questions {
		got, asked := answer(ctx, w, q)
		verdict := "as expected"
		switch {
		case asked != nil:
			verdict, got = "NOT ASKED", asked.Error()
		case got != q.want:
			verdict = "DIFFERENT"
			different++
		}
		fmt.Fprintf(out, "%2d. %s\n    expected: %s\n    got:      %s\n    %s\n", i+1, q.text, q.want, got, verdict)
	}
	return different, w.describe(ctx, out)
}

func answer(ctx context.Context, w *world, q question) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return q.ask(ctx, w)
}

// A world is the database with the bridge's tables.
type world struct {
	db     *sql.DB
	ledger *sqlserver.Ledger
	inbox  *sqlserver.Inbox
}

func (w *world) set(ctx context.Context) error {
	for _, part := range []migrate.Part{migrate.LedgerPart, migrate.InboxPart} {
		there, _, err := migrate.Version(ctx, w.db, migrate.SQLServer, part)
		if err != nil {
			return err
		}
		if there > 0 {
			return fmt.Errorf("the database has tables of the %s; give it one without", part)
		}
	}
	err := errors.Join(migrate.Ledger(ctx, w.db, migrate.SQLServer), migrate.Inbox(ctx, w.db, migrate.SQLServer))
	if err == nil {
		w.ledger, err = sqlserver.Open(ctx, w.db)
	}
	if err == nil {
		w.inbox, err = sqlserver.OpenInbox(ctx, w.db)
	}
	if err != nil {
		return errors.Join(err, w.clear())
	}
	return nil
}

// made are the tables that set has made.
var made = []string{"bridge_ledger", "bridge_identity", "bridge_parked", "bridge_watermark", "bridge_ledger_version",
	"bridge_inbox", "bridge_inbox_pending", "bridge_mark", "bridge_kept", "bridge_inbox_version"}

func (w *world) clear() (all error) {
	for _, table := range made {
		if _, err := w.db.ExecContext(context.Background(), "DROP TABLE "+table); err != nil {
			all = errors.Join(all, fmt.Errorf("drop %s: %w", table, err))
		}
	}
	return all
}

// describe prints what the doctor finds.
func (w *world) describe(ctx context.Context, out io.Writer) error {
	findings, err := sqlserverinspect.New(w.ledger).Diagnose(ctx)
	for _, f := range findings {
		fmt.Fprintf(out, "%s: %s: %s\n", f.Check, f.Level, f.Text)
	}
	return err
}

// begin begins a transaction whose waits end after some seconds, with an error.
func (w *world) begin(ctx context.Context) (*sql.Tx, error) {
	tx, err := w.db.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, "SET LOCK_TIMEOUT 3000"); err != nil {
		return nil, errors.Join(err, tx.Rollback())
	}
	return tx, nil
}

// in runs steps, each in a transaction of its own, which is committed.
func (w *world) in(ctx context.Context, steps ...func(tx bridge.Tx) error) error {
	for i, step := range steps {
		tx, err := w.begin(ctx)
		if err != nil {
			return err
		}
		if err := step(bridge.SQL(tx)); err != nil {
			_ = tx.Rollback()
			return fmt.Errorf("step %d: %w", i+1, err)
		}
		if err := tx.Commit(); err != nil {
			return err
		}
	}
	return nil
}
