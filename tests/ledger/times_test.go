package ledger_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestPostgresRowHasTheTimeOfItsInsert(t *testing.T) {
	t.Parallel()
	_, db := migrated(t)
	testTimeOfInsert(t, openLedger(t, db), "SELECT pg_sleep(0.2)")
}

func testMariaDBTimeOfInsert(t *testing.T) {
	_, db := mariaDB(t)
	testTimeOfInsert(t, openMySQL(t, db), "DO SLEEP(0.2)")
}

// If recorded_at were the start of the transaction, it could be earlier than the staging of the
// message, and a sweep would lose the message.
func testTimeOfInsert(t *testing.T, ledger driver.Ledger, pause string) {
	t.Helper()
	ids := []uuid.UUID{newID(), newID()}
	tx := begin(t, ledger.DB())
	for _, id := range ids {
		must(t, ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(id)))
		_, err := tx.ExecContext(t.Context(), pause) // on the server, whose clock is read
		must(t, err)
	}
	must(t, tx.Commit())
	orphans, err := ledger.Orphans(t.Context(), 0, 10)
	must(t, err)
	if len(orphans) != 2 || orphans[0].ID != ids[0] {
		t.Fatalf("the rows are %v", orphans)
	}
	if apart := orphans[1].RecordedAt.Sub(orphans[0].RecordedAt); apart < 200*time.Millisecond {
		t.Errorf("the rows are %v apart, were inserted 200 ms apart", apart)
	}
}

// Whatever time settings a connection has, times denote the same instants.
func testMariaDBTimesDoNotDependOnTheConnection(t *testing.T) {
	config, admin := mariaDB(t)
	id := newID()
	ledger, err := mysql.Open(t.Context(), admin)
	must(t, err)
	must(t, recorded(t, ledger, id).Commit())
	execute(t, admin, "UPDATE bridge_ledger SET recorded_at = recorded_at - INTERVAL 2 HOUR")
	zone := time.FixedZone("far", -11*3600)
	for _, parse := range []bool{false, true} {
		as := config.Clone()
		as.ParseTime, as.Loc, as.Params = parse, zone, map[string]string{"time_zone": "'+09:00'"}
		ledger, err := mysql.Open(t.Context(), connectMariaDB(t, as))
		must(t, err)
		orphans, err := ledger.Orphans(t.Context(), time.Hour, 10)
		must(t, err)
		if len(orphans) != 1 || (time.Since(orphans[0].RecordedAt)-2*time.Hour).Abs() > 10*time.Minute {
			t.Errorf("parseTime %t: the orphans are %v, at %v", parse, orphans, time.Now().UTC())
		}
		if _, err := ledger.Orphans(t.Context(), 3*time.Hour, 10); err != nil {
			t.Error(err)
		}
	}
}

// A migration must not wait long behind an open transaction, since all other clients would wait
// behind the migration.
func TestPostgresMigrationGivesUpBehindAnOpenTransaction(t *testing.T) {
	t.Parallel()
	_, db := migrated(t)
	ledger := openLedger(t, db)
	for _, statement := range []string{"DROP TABLE bridge_watermark", "ALTER TABLE bridge_ledger DROP COLUMN message, DROP COLUMN stage_at", "DELETE FROM bridge_ledger_version WHERE version_id > 1"} {
		execute(t, db, statement)
	}
	givesUpBehindAnOpenTransaction(t, db, ledger, migrate.PostgreSQL, awaitLock)
}

// On MariaDB a DDL statement would wait for a day, with all other clients behind it.
func testMariaDBMigrationGivesUpBehindAnOpenTransaction(t *testing.T) {
	_, db := mariaDB(t)
	ledger := openMySQL(t, db)
	execute(t, db, "ALTER TABLE bridge_ledger DROP INDEX bridge_ledger_stage_at, DROP COLUMN message, DROP COLUMN stage_at, DROP COLUMN claimed_by")
	execute(t, db, "DELETE FROM bridge_ledger_version WHERE version_id > 2")
	givesUpBehindAnOpenTransaction(t, db, ledger, migrate.MySQL, awaitMetadataLock)
}

// givesUpBehindAnOpenTransaction migrates beside an open transaction. await returns when the
// migration waits for a lock.
func givesUpBehindAnOpenTransaction(t *testing.T, db *sql.DB, ledger driver.Recorder, dialect migrate.Dialect, await func(*testing.T, *sql.DB)) {
	t.Helper()
	tx := begin(t, db)
	must(t, ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(newID())))
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- migrate.Ledger(ctx, db, dialect) }()
	await(t, db)
	// Other clients wait behind the migration, and proceed while tx is still open.
	other := begin(t, db)
	must(t, ledger.Record(t.Context(), bridge.SQL(other), driver.Plain(newID())))
	must(t, other.Commit())
	cancel()
	if err := servertest.Next(t, "the migration's end", failed); err == nil {
		t.Error("the migration has changed a table in use")
	}
	must(t, tx.Commit())
	must(t, migrate.Ledger(t.Context(), db, dialect))
}
