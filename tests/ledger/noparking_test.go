package ledger_test

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// upTo returns the ledger's migrations up to a version.
func upTo(t *testing.T, dialect migrate.Dialect, version int) fs.FS {
	t.Helper()
	const root = "../../bridge/migrate/"
	files := make(fstest.MapFS)
	for v := 1; v <= version; v++ {
		found, err := filepath.Glob(fmt.Sprintf("%ssql/%s/ledger/%05d_*.sql", root, dialect, v))
		must(t, err)
		if len(found) != 1 {
			t.Fatalf("version %d: %v", v, found)
		}
		text, err := os.ReadFile(found[0])
		must(t, err)
		files[found[0][len(root):]] = &fstest.MapFile{Data: text}
	}
	return files
}

// parkedDatabase is a database of the last release that parked messages, whose tables are being
// migrated.
type parkedDatabase struct {
	*sql.DB
	ledgertest.Harness
	dialect migrate.Dialect
	awaits  func(t *testing.T, db *sql.DB) // returns when a statement waits for a table
}

// parked parks a message in tx.
func (p *parkedDatabase) parked(t *testing.T, tx *sql.Tx, table string, id uuid.UUID) {
	t.Helper()
	_, err := tx.ExecContext(t.Context(), "INSERT INTO "+table+" (id, message) VALUES ("+p.Literal(id)+", 'of "+id.String()+"')")
	must(t, err)
}

func (p *parkedDatabase) row(t *testing.T, tx *sql.Tx, id uuid.UUID) {
	t.Helper()
	_, err := tx.ExecContext(t.Context(), "INSERT INTO bridge_ledger (id) VALUES ("+p.Literal(id)+")")
	must(t, err)
}

// A message that an earlier release has parked is carried by its row afterwards, and due at once.
// A sender of that release that is still running loses none.
func testParkedMessagesAreCarried(t *testing.T, p *parkedDatabase) {
	must(t, migrate.Tables(t.Context(), p.DB, p.dialect, upTo(t, p.dialect, 3), "ledger"))
	parked, late, plain, forwarded, left, carried := newID(), newID(), newID(), newID(), newID(), newID()
	tx := begin(t, p.DB)
	for _, id := range []uuid.UUID{parked, plain, left} {
		p.row(t, tx, id)
	}
	p.parked(t, tx, "bridge_parked", parked)
	p.parked(t, tx, "bridge_parked", forwarded)
	must(t, tx.Commit())
	want := map[uuid.UUID]string{parked: "of " + parked.String(), late: "of " + late.String(), carried: "carried"}
	if p.dialect == migrate.MySQL { // as a crash leaves them, with a sender that has parked in the new table
		execute(t, p.DB, "RENAME TABLE bridge_parked TO bridge_parked_moved")
		execute(t, p.DB, "CREATE TABLE bridge_parked (id BINARY(16) NOT NULL PRIMARY KEY, message LONGBLOB NOT NULL) ENGINE = InnoDB")
		tx = begin(t, p.DB)
		p.parked(t, tx, "bridge_parked", left)
		must(t, tx.Commit())
		want[left] = "of " + left.String()
	}

	sender := begin(t, p.DB)
	p.row(t, sender, late)
	p.parked(t, sender, "bridge_parked", late)
	migrated := make(chan error, 1)
	go func() { migrated <- migrate.Ledger(context.WithoutCancel(t.Context()), p.DB, p.dialect) }()
	p.awaits(t, p.DB)
	must(t, sender.Commit())
	must(t, servertest.Next(t, "the migration's end", migrated))

	for range 2 { // the second time with nothing to do
		must(t, migrate.Ledger(t.Context(), p.DB, p.dialect))
		for _, table := range []string{"bridge_parked", "bridge_parked_moved"} {
			if _, err := p.DB.ExecContext(t.Context(), "SELECT 1 FROM "+table); err == nil {
				t.Errorf("there is a table %s", table)
			}
		}
	}
	ledger, err := p.Open(t.Context(), p.DB)
	must(t, err)
	tx = begin(t, p.DB)
	must(t, ledger.Record(t.Context(), bridge.SQL(tx), []driver.Entry{{ID: carried, Message: []byte("carried")}}))
	must(t, tx.Commit())
	var due []driver.DueRow
	servertest.Eventually(t, "the new one is due", func() bool {
		due, _, err = ledger.Due(t.Context(), driver.DueRow{}, 10)
		must(t, err)
		return len(due) == len(want)
	})
	for _, row := range due {
		if row.Unpublished() != (row.ID != carried) {
			t.Errorf("%s was recorded at %v and is due from %v", row.ID, row.RecordedAt, row.StageAt)
		}
	}
	messages, err := ledger.Claim(t.Context(), due)
	must(t, err)
	for _, m := range messages {
		if string(m.Message) != want[m.ID] {
			t.Errorf("%s has the message %q, must be %q", m.ID, m.Message, want[m.ID])
		}
		delete(want, m.ID)
	}
	if len(want) > 0 {
		t.Errorf("missing are %v", want)
	}
	found, _, err := ledger.Committed(t.Context(), []uuid.UUID{plain, forwarded})
	must(t, err)
	if len(found) != 1 || found[0] != plain {
		t.Errorf("%v are committed, must be the one with a row", found)
	}
	must(t, prove(t, ledger))
}

func TestPostgresParkedMessagesAreCarried(t *testing.T) {
	t.Parallel()
	testParkedMessagesAreCarried(t, &parkedDatabase{connect(t, servertest.PostgresDB(t)), postgresHarness("pgx", nil), migrate.PostgreSQL, awaitLock})
}

func testMariaDBParkedMessagesAreCarried(t *testing.T) {
	db := connectMariaDB(t, mariaDBConfig(t, servertest.MariaDBDatabase(t)))
	testParkedMessagesAreCarried(t, &parkedDatabase{db, mariaDBHarness(), migrate.MySQL, awaitMetadataLock})
}

// awaitMetadataLock waits until a statement in the database waits for a table.
func awaitMetadataLock(t *testing.T, db *sql.DB) {
	t.Helper()
	servertest.Eventually(t, "a statement waits for a table", func() bool {
		var waits int
		must(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND state = 'Waiting for table metadata lock'").Scan(&waits))
		return waits > 0
	}, func() string { return "" })
}
