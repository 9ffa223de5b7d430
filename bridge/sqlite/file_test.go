package sqlite_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
)

func TestFileNotInWALModeIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ledger.db")
	db, err := sql.Open("sqlite", "file:"+file)
	must(t, err)
	defer db.Close()
	must(t, migrate.Ledger(t.Context(), db, migrate.SQLite))
	if _, err := sqlite.Open(t.Context(), db); err == nil || !strings.Contains(err.Error(), "wal") {
		t.Errorf("open a file not in WAL mode: %v", err)
	}
}

// The state that a migrator leaves which dies before its first version: the others
// begin that version all at once.
func TestMigratorsMeetAtOneVersion(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ledger.db")
	connect := func() *sql.DB {
		db, err := open(file, "")
		must(t, err)
		t.Cleanup(func() { must(t, db.Close()) })
		must(t, db.PingContext(t.Context()))
		return db
	}
	_, err := connect().ExecContext(t.Context(), `CREATE TABLE bridge_ledger_version (
		id INTEGER PRIMARY KEY AUTOINCREMENT, version_id INTEGER NOT NULL, is_applied INTEGER NOT NULL,
		tstamp TIMESTAMP DEFAULT (datetime('now')));
		INSERT INTO bridge_ledger_version (version_id, is_applied) VALUES (0, 1)`)
	must(t, err)
	var all sync.WaitGroup
	for range 8 {
		db := connect()
		all.Go(func() {
			if err := migrate.Ledger(t.Context(), db, migrate.SQLite); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	openLedger(t, file, "")
}

// SQLite grants BEGIN IMMEDIATE on a read-only file while another process writes.
func TestReadOnlyFileSettlesNothing(t *testing.T) {
	file, sender := newLedger(t, "")
	for _, options := range []string{"mode=ro", "_pragma=query_only(1)"} {
		t.Run(options, func(t *testing.T) {
			reader := openLedger(t, file, options)
			id := newID()
			record(t, sender, id)
			outcome, err := reader.Settle(t.Context(), id, time.Second)
			if outcome != driver.StillOpen || !errors.Is(err, bridge.ErrNotPrimary) {
				t.Errorf("settle: %q, %v, must be %q, %v", outcome, err, driver.StillOpen, bridge.ErrNotPrimary)
			}
			if err := reader.Check(t.Context()); !errors.Is(err, bridge.ErrNotPrimary) {
				t.Errorf("check: %v, must be %v", err, bridge.ErrNotPrimary)
			}
		})
	}
}

// With a shared cache, connections of one process can read what others have not
// committed.
func TestDirtyReadsAreNotBelieved(t *testing.T) {
	file, ledger := newLedger(t, "cache=shared")
	dirty := openLedger(t, file, "cache=shared&_pragma=read_uncommitted(1)")
	id := newID()
	record(t, ledger, id)
	if found, err := dirty.Committed(t.Context(), []uuid.UUID{id}); len(found) > 0 || err == nil || !strings.Contains(err.Error(), "read_uncommitted") {
		t.Errorf("look up: %v, %v", found, err)
	}
}

func TestSettleLeavesTheConnectionAsItWas(t *testing.T) {
	_, ledger := newLedger(t, "")
	ledger.DB().SetMaxOpenConns(1)
	expectOutcome(t, ledger, newID(), driver.RolledBack)
	var timeout int
	must(t, ledger.DB().QueryRowContext(t.Context(), "PRAGMA busy_timeout").Scan(&timeout))
	if timeout != 120000 {
		t.Errorf("busy_timeout is %d", timeout)
	}
	// A transaction left open would make this one an error.
	tx, err := ledger.DB().BeginTx(t.Context(), nil)
	must(t, err)
	must(t, tx.Rollback())
}

func TestPoolOfOneIsNoProof(t *testing.T) {
	_, ledger := newLedger(t, "")
	ledger.DB().SetMaxOpenConns(1)
	if err := driver.Prove(t.Context(), ledger); err == nil || errors.Is(err, bridge.ErrProof) || !strings.Contains(err.Error(), "one connection") {
		t.Errorf("the proof says %v", err)
	}
}

// The environment variable that makes the test binary a process which records an
// ID in the file, and then waits to be killed.
const writerFile, writerID = "TEST_SQLITE_WRITER_FILE", "TEST_SQLITE_WRITER_ID"

func TestMain(m *testing.M) {
	if file := os.Getenv(writerFile); file != "" {
		if err := recordAndHang(file, uuid.MustParse(os.Getenv(writerID))); err != nil {
			fmt.Println(err)
		}
		return
	}
	os.Exit(m.Run())
}

func recordAndHang(file string, id uuid.UUID) error {
	ctx := context.Background()
	db, err := open(file, "")
	if err != nil {
		return err
	}
	ledger, err := sqlite.Open(ctx, db)
	if err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := ledger.Record(ctx, bridge.SQL(tx), []uuid.UUID{id}); err != nil {
		return err
	}
	fmt.Println("recorded")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func TestKilledProcessIsARollback(t *testing.T) {
	file, ledger := newLedger(t, "")
	id := newID()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	writer := exec.CommandContext(ctx, os.Args[0])
	writer.Env = append(os.Environ(), writerFile+"="+file, writerID+"="+id.String())
	output, err := writer.StdoutPipe()
	must(t, err)
	_, err = writer.StdinPipe() // stays open
	must(t, err)
	must(t, writer.Start())
	defer func() {
		cancel() // ends the writer
		_ = writer.Wait()
	}()
	line, err := bufio.NewReader(output).ReadString('\n')
	must(t, err)
	if line != "recorded\n" {
		t.Fatal(line)
	}
	outcome, err := ledger.Settle(t.Context(), id, 50*time.Millisecond)
	must(t, err)
	if outcome != driver.StillOpen {
		t.Errorf("settle says %q while the other process has its transaction open", outcome)
	}
	must(t, writer.Process.Kill())
	outcome, err = ledger.Settle(t.Context(), id, 2*time.Minute)
	must(t, err)
	if outcome != driver.RolledBack {
		t.Errorf("settle says %q after the other process was killed", outcome)
	}
}

func newLedger(t *testing.T, options string) (file string, ledger *sqlite.Ledger) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "ledger.db")
	db, err := open(file, options)
	must(t, err)
	must(t, migrate.Ledger(t.Context(), db, migrate.SQLite))
	must(t, db.Close())
	return file, openLedger(t, file, options)
}

func openLedger(t *testing.T, file, options string) *sqlite.Ledger {
	t.Helper()
	db, err := open(file, options)
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	ledger, err := sqlite.Open(t.Context(), db)
	must(t, err)
	return ledger
}

// record records the ID in a transaction that stays open until the test ends.
func record(t *testing.T, ledger *sqlite.Ledger, id uuid.UUID) {
	t.Helper()
	tx, err := ledger.DB().BeginTx(t.Context(), nil)
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	must(t, ledger.Record(t.Context(), bridge.SQL(tx), []uuid.UUID{id}))
}

func expectOutcome(t *testing.T, ledger driver.Ledger, id uuid.UUID, want driver.Outcome) {
	t.Helper()
	outcome, err := ledger.Settle(t.Context(), id, time.Second)
	must(t, err)
	if outcome != want {
		t.Errorf("settle says %q, must say %q", outcome, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }
