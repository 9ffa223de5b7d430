package sqlserver_test

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/tds"
)

// Babelfish has no error number of its own for a missing table.
func TestAnEmptyDatabaseHasNoVersionAndNeedsAMigration(t *testing.T) {
	for name, options := range map[string]tds.Options{"SQL Server": {}, "Babelfish": {Babelfish: true}} {
		t.Run(name, func(t *testing.T) {
			db := connect(t, servertest.SQLServerDB(t, servertest.SQLServerStandIn(t, &options).URL("master"), false))
			there, wanted, err := migrate.Version(t.Context(), db, migrate.SQLServer, migrate.LedgerPart)
			if err != nil || there != 0 || wanted == 0 {
				t.Errorf("version %d of %d, %v", there, wanted, err)
			}
			_, ledger := sqlserver.Open(t.Context(), db)
			_, inbox := sqlserver.OpenInbox(t.Context(), db)
			for doing, err := range map[string]error{"open ledger": ledger, "open inbox": inbox} {
				if !errors.Is(err, bridge.ErrNoSchema) || !strings.Contains(err.Error(), "migrate.") {
					t.Errorf("%s: %v", doing, err)
				}
			}
		})
	}
}

func TestAMigrationWithoutARightNamesTheRight(t *testing.T) {
	for right, says := range map[string]string{"CREATE TABLE": "GRANT CREATE TABLE", "ALTER ON SCHEMA": "GRANT ALTER ON SCHEMA"} {
		server := servertest.SQLServerStandIn(t, nil)
		db := connect(t, servertest.SQLServerDB(t, server.URL("master"), false))
		server.Deny(right)
		if err := migrate.Ledger(t.Context(), db, migrate.SQLServer); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("without %s: %v", right, err)
		}
	}
}

// A statement that meets a page lock waits for rows that it does not need.
func TestIndexesOfRowsThatOthersLockHaveNoPageLocks(t *testing.T) {
	var script strings.Builder
	for _, part := range []migrate.Part{migrate.LedgerPart, migrate.InboxPart} {
		must(t, migrate.Print(&script, migrate.SQLServer, part, 0))
	}
	indexes := 0
	for _, line := range strings.Split(script.String(), "\n") {
		if !strings.Contains(line, "CREATE INDEX") {
			continue
		}
		indexes++
		if !strings.Contains(line, "ALLOW_PAGE_LOCKS = OFF") {
			t.Error(line)
		}
	}
	if indexes == 0 {
		t.Error("the script has no index")
	}
}

// A message that an earlier release has parked is carried by its row afterwards, and due at once.
// A sender of that release that is still running loses none.
func TestParkedMessagesAreCarried(t *testing.T) {
	for name, snapshot := range map[string]bool{"locking": false, "snapshot": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testParkedMessagesAreCarried(t, connect(t, servertest.SQLServerDB(t, servertest.SQLServer(t, nil), snapshot)))
		})
	}
}

func testParkedMessagesAreCarried(t *testing.T, db *sql.DB) {
	const root = "../../bridge/migrate/"
	found, err := filepath.Glob(root + "sql/sqlserver/ledger/0000[1-3]_*.sql")
	must(t, err)
	files := make(fstest.MapFS)
	for _, name := range found {
		text, err := os.ReadFile(name)
		must(t, err)
		files[name[len(root):]] = &fstest.MapFile{Data: text}
	}
	must(t, migrate.Tables(t.Context(), db, migrate.SQLServer, files, "ledger"))
	parked, late, plain, forwarded := newID(), newID(), newID(), newID()
	message := func(id uuid.UUID) string { return "of " + id.String() }
	tx := begin(t, db, nil)
	park := func(id uuid.UUID) {
		execute(t, tx, fmt.Sprintf("INSERT INTO bridge_parked (id, message) VALUES ('%s', 0x%s)", id, hex.EncodeToString([]byte(message(id)))))
	}
	row := func(id uuid.UUID) { execute(t, tx, fmt.Sprintf("INSERT INTO bridge_ledger (id) VALUES ('%s')", id)) }
	row(parked)
	row(plain)
	park(parked)
	park(forwarded)
	must(t, tx.Commit())
	tx = begin(t, db, nil)
	row(late)
	park(late)
	migrated := make(chan error, 1)
	go func() { migrated <- migrate.Ledger(context.WithoutCancel(t.Context()), db, migrate.SQLServer) }()
	awaitWaiting(t, db)
	must(t, tx.Commit())
	must(t, servertest.Next(t, "the migration's end", migrated))

	if _, err := db.ExecContext(t.Context(), "DELETE FROM bridge_parked"); err == nil {
		t.Error("there is a table bridge_parked")
	}
	ledger := open(t, db)
	due, _, err := ledger.Due(t.Context(), driver.DueRow{}, 10)
	must(t, err)
	for _, r := range due {
		if !r.Unpublished() {
			t.Errorf("%s was recorded at %v and is due from %v", r.ID, r.RecordedAt, r.StageAt)
		}
	}
	messages, err := ledger.Claim(t.Context(), due)
	must(t, err)
	claimed := make(map[uuid.UUID]driver.Carried)
	for _, m := range messages {
		claimed[m.ID] = m
	}
	if len(messages) != 2 || string(claimed[parked].Message) != message(parked) || string(claimed[late].Message) != message(late) {
		t.Errorf("%v are claimed", messages)
	}
	expectCommitted(t, ledger, plain, true)
	expectCommitted(t, ledger, forwarded, false)
}
