package sqlite_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/proof"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
)

// The pool's connections continue with the deleted file.
func TestAProofEndsWithItsFile(t *testing.T) {
	file, sender := newLedger(t, "")
	ledger := openLedger(t, file, "")
	proven, err := proof.Prove(t.Context(), ledger)
	must(t, err)
	id := newID()
	_, err = proven.Settle(t.Context(), id, time.Second)
	must(t, err)
	_, err = sender.DB().ExecContext(t.Context(), "VACUUM INTO ?", file+".copy")
	must(t, err)
	must(t, os.Rename(file+".copy", file))
	if outcome, err := proven.Settle(t.Context(), id, time.Second); !errors.Is(err, bridge.ErrOtherInstance) {
		t.Errorf("settle: %q, %v, must be %v", outcome, err, bridge.ErrOtherInstance)
	}
}

// SQLite shows only the path of its file. A connection that had been idle during the replacement
// would return 'rolled back' in the name of the new file.
func TestACheckLeavesARemovedFile(t *testing.T) {
	file, former := newLedger(t, "")
	ledger := openLedger(t, file, "")
	_, err := former.DB().ExecContext(t.Context(), "VACUUM INTO ?", file+".copy")
	must(t, err)
	for _, suffix := range []string{"", "-wal", "-shm"} {
		must(t, os.Remove(file+suffix))
	}
	must(t, os.Rename(file+".copy", file))
	sender, id := openLedger(t, file, ""), newID()
	tx, err := sender.DB().BeginTx(t.Context(), nil)
	must(t, err)
	must(t, sender.Record(t.Context(), bridge.SQL(tx), driver.Plain(id)))
	must(t, tx.Commit())
	must(t, ledger.Check(t.Context()))
	expectOutcome(t, ledger, id, driver.Committed)
}

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

// SQLite grants BEGIN IMMEDIATE on a read-only file while another process writes.
func TestReadOnlyFileSettlesNothing(t *testing.T) {
	file, sender := newLedger(t, "")
	for _, options := range []string{"mode=ro", "_pragma=query_only(1)"} {
		t.Run(options, func(t *testing.T) {
			reader := openLedger(t, file, options)
			id := newID()
			record(t, sender, id)
			outcome, _, err := reader.Settle(t.Context(), id, time.Second)
			if outcome != driver.StillOpen || !errors.Is(err, bridge.ErrNotPrimary) {
				t.Errorf("settle: %q, %v, must be %q, %v", outcome, err, driver.StillOpen, bridge.ErrNotPrimary)
			}
			if err := reader.Check(t.Context()); !errors.Is(err, bridge.ErrNotPrimary) {
				t.Errorf("check: %v, must be %v", err, bridge.ErrNotPrimary)
			}
		})
	}
}

// With a shared cache, connections of one process can read uncommitted rows of others.
func TestDirtyReadsAreNotBelieved(t *testing.T) {
	file, ledger := newLedger(t, "cache=shared")
	dirty := openLedger(t, file, "cache=shared&_pragma=read_uncommitted(1)")
	id := newID()
	record(t, ledger, id)
	if found, _, err := dirty.Committed(t.Context(), []uuid.UUID{id}); len(found) > 0 || err == nil || !strings.Contains(err.Error(), "read_uncommitted") {
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
	// A transaction left open would make this BeginTx an error.
	tx, err := ledger.DB().BeginTx(t.Context(), nil)
	must(t, err)
	must(t, tx.Rollback())
}

// A power cut must not undo a claim, because Cancel relies on it. A trigger shows the setting of the
// connection that claims.
func TestAClaimIsOnTheDiskWithAnySynchronous(t *testing.T) {
	for level, claiming := range map[int]int{0: 2, 1: 2, 2: 2, 3: 3} {
		_, ledger := newLedger(t, fmt.Sprintf("_pragma=synchronous(%d)", level))
		db := ledger.DB()
		db.SetMaxOpenConns(1)
		_, err := db.ExecContext(t.Context(), `CREATE TABLE seen (synchronous INTEGER)`)
		must(t, err)
		_, err = db.ExecContext(t.Context(), `CREATE TRIGGER see AFTER UPDATE ON bridge_ledger BEGIN
			INSERT INTO seen SELECT synchronous FROM pragma_synchronous; END`)
		must(t, err)
		tx, err := db.BeginTx(t.Context(), nil)
		must(t, err)
		must(t, ledger.Record(t.Context(), bridge.SQL(tx), []driver.Entry{{ID: newID(), Message: []byte("message"), Unpublished: true}}))
		must(t, tx.Commit())
		rows, _, err := ledger.Due(t.Context(), driver.DueRow{}, 10)
		must(t, err)
		claimed, err := ledger.Claim(t.Context(), rows)
		must(t, err)
		if len(claimed) != 1 {
			t.Errorf("%d rows are claimed", len(claimed))
		}
		var during, after int
		must(t, db.QueryRowContext(t.Context(), `SELECT synchronous FROM seen`).Scan(&during))
		must(t, db.QueryRowContext(t.Context(), `PRAGMA synchronous`).Scan(&after))
		if during != claiming || after != level {
			t.Errorf("synchronous is %d: %d while Claim writes, and %d afterwards", level, during, after)
		}
	}
}

func TestPoolOfOneIsNoProof(t *testing.T) {
	_, ledger := newLedger(t, "")
	ledger.DB().SetMaxOpenConns(1)
	if _, err := proof.Prove(t.Context(), ledger); err == nil || errors.Is(err, bridge.ErrProof) || !strings.Contains(err.Error(), "pool allows 1 connection") {
		t.Errorf("the proof says %v", err)
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
	must(t, ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(id)))
}

func expectOutcome(t *testing.T, ledger driver.Ledger, id uuid.UUID, want driver.Outcome) {
	t.Helper()
	outcome, _, err := ledger.Settle(t.Context(), id, time.Second)
	must(t, err)
	if outcome != want {
		t.Errorf("settle returned %q, must return %q", outcome, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }
