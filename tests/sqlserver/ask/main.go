// Ask answers, on a real SQL Server or Azure SQL Database, questions that are in no documentation
// and that the stand-in cannot settle. It prints a table of expected and actual answers. To run
// it on a server:
//
//	go run ./tests/sqlserver/ask 'sqlserver://user:password@host?database=scratch'
//
// Without an argument it uses BRIDGE_TEST_SQLSERVER_URL. The database must have none of the
// bridge's tables; ask creates them and drops them. It asks every question with and without
// READ_COMMITTED_SNAPSHOT and optimized locking, as far as the login may switch them. To switch
// them it ends the database's other sessions. Afterwards it restores both settings;
// ALLOW_SNAPSHOT_ISOLATION stays on. The login needs the rights to do so, to create a database
// and a user (for two questions), and to see other sessions (VIEW SERVER STATE; in Azure SQL
// Database, VIEW DATABASE STATE). The table marks each question that could not be asked.
//
// A run takes some minutes, an hour at most. Please send the table to the project. It contains
// the server's version, and no other name or address.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	_ "github.com/microsoft/go-mssqldb" // driver
)

// limit bounds the whole run.
const limit = time.Hour

// rows is the number of rows in each table for the second look at the plans.
const rows = 1_000_000

func main() {
	url := os.Getenv("BRIDGE_TEST_SQLSERVER_URL")
	if len(os.Args) > 1 {
		url = os.Args[1]
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	different, err := ask(ctx, os.Stdout, url)
	if err != nil {
		fmt.Fprintln(os.Stderr, "ask:", err)
		os.Exit(2)
	}
	if different > 0 {
		os.Exit(1)
	}
}

// patience bounds each question without a bound of its own.
const patience = time.Minute

// ask prints the table, and returns the number of unexpected answers and of modes not asked to the
// end.
func ask(ctx context.Context, out io.Writer, url string) (different int, err error) {
	modes, restore, err := modesOf(ctx, url)
	if err != nil {
		return 0, err
	}
	defer restore()
	t := &table{}
	for _, m := range modes {
		if !m.set(ctx, url) {
			t.skipped = append(t.skipped, m.String())
			continue
		}
		if err := askIn(ctx, t, m.String(), url); err != nil { // the answers of other modes count
			t.failed = append(t.failed, fmt.Sprintf("%s: %v", m, err))
		}
	}
	if len(t.modes) == 0 {
		return 0, fmt.Errorf("nothing could be asked: %q", append(t.skipped, t.failed...))
	}
	return t.print(out)
}

// askIn asks all questions in a mode.
func askIn(ctx context.Context, t *table, mode, url string) (err error) {
	db, err := sql.Open("sqlserver", url)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	w := &world{db: db, url: url}
	if err := w.set(ctx); err != nil {
		return err
	}
	defer func() {
		if failed := w.clear(); err == nil {
			err = failed
		}
	}()
	t.modes = append(t.modes, mode)
	for i, q := range questions {
		got, asked := answer(ctx, w, q)
		t.note(i, got, asked)
	}
	t.describe(ctx, w)
	return nil
}

func answer(ctx context.Context, w *world, q question) (string, error) {
	within := q.within
	if within == 0 {
		within = patience
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return q.ask(ctx, w)
}
