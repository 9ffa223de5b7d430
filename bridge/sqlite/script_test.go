package sqlite_test

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
)

// Version 3 makes the table of the ledger anew.
func TestAPrintedScriptThatRunsAgainKeepsAllRows(t *testing.T) {
	_, ledger := newLedger(t, "")
	var script strings.Builder
	must(t, migrate.Print(&script, migrate.SQLite, migrate.LedgerPart, 0))

	entries := []driver.Entry{{ID: newID()}, {ID: newID(), Message: []byte("carried"), Unpublished: true}}
	tx, err := ledger.DB().BeginTx(t.Context(), nil)
	must(t, err)
	must(t, ledger.Record(t.Context(), bridge.SQL(tx), entries))
	must(t, tx.Commit())

	for range 2 {
		_, err := ledger.DB().ExecContext(t.Context(), script.String())
		must(t, err)
		found, _, err := ledger.Committed(t.Context(), []uuid.UUID{entries[0].ID, entries[1].ID})
		must(t, err)
		if len(found) != len(entries) {
			t.Fatalf("rows are left: %v", found)
		}
	}
	due, _, err := ledger.Due(t.Context(), driver.DueRow{}, 10)
	must(t, err)
	messages, err := ledger.Claim(t.Context(), due)
	must(t, err)
	if len(messages) != 1 || messages[0].ID != entries[1].ID || string(messages[0].Message) != "carried" || !due[0].Unpublished() {
		t.Errorf("%v are due, %v are claimed", due, messages)
	}
}

// Version 4 moves parked messages to their rows. A parked message without a row was forwarded.
func TestParkedMessagesAreCarried(t *testing.T) {
	for name, up := range map[string]func(t *testing.T, db *sql.DB){
		"migrate": func(t *testing.T, db *sql.DB) { must(t, migrate.Ledger(t.Context(), db, migrate.SQLite)) },
		"script": func(t *testing.T, db *sql.DB) {
			var script strings.Builder
			must(t, migrate.Print(&script, migrate.SQLite, migrate.LedgerPart, 3))
			for range 2 {
				_, err := db.ExecContext(t.Context(), script.String())
				must(t, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			file, ledger := newLedger(t, "")
			db, parked, plain := ledger.DB(), newID(), newID()
			for _, statement := range []string{
				`DELETE FROM bridge_ledger_version WHERE version_id > 3`,
				`CREATE TABLE bridge_parked (id TEXT PRIMARY KEY, message BLOB NOT NULL) STRICT`,
				`INSERT INTO bridge_ledger (id, recorded_at) VALUES ('` + parked.String() + `', unixepoch() - 7200), ('` + plain.String() + `', unixepoch())`,
				`INSERT INTO bridge_parked VALUES ('` + parked.String() + `', x'00ff'), ('` + newID().String() + `', x'01')`,
			} {
				_, err := db.ExecContext(t.Context(), statement)
				must(t, err)
			}
			up(t, db)
			ledger = openLedger(t, file, "")
			due, now, err := ledger.Due(t.Context(), driver.DueRow{}, 10)
			must(t, err)
			if len(due) != 1 || due[0].ID != parked || !due[0].Unpublished() || now.Sub(due[0].RecordedAt) < 2*time.Hour {
				t.Fatalf("%v are due at %v", due, now)
			}
			messages, err := ledger.Claim(t.Context(), due)
			must(t, err)
			if len(messages) != 1 || string(messages[0].Message) != "\x00\xff" {
				t.Errorf("%v are claimed", messages)
			}
			var tables int
			must(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM sqlite_schema WHERE name = 'bridge_parked'`).Scan(&tables))
			if tables > 0 {
				t.Error("there is a table bridge_parked")
			}
		})
	}
}
