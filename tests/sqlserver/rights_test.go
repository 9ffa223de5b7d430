package sqlserver_test

import (
	"database/sql"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/tds"
)

// bridgectl grants prints these rights. Each role does all of its work with them.
func TestTheRightsOfEachRoleAreEnough(t *testing.T) {
	const everything = "" // of the inbox
	works := map[migrate.Role]func(t *testing.T, db *sql.DB){
		migrate.Sender: func(t *testing.T, db *sql.DB) { send(t, db) },
		migrate.Canceller: func(t *testing.T, db *sql.DB) {
			ledger, _, later := send(t, db)
			tx := begin(t, db, nil)
			if cancelled, err := ledger.Cancel(t.Context(), bridge.SQL(tx), later); err != nil || !cancelled {
				t.Errorf("cancel: %t, %v", cancelled, err)
			}
			must(t, tx.Commit())
		},
		migrate.Verifier: func(t *testing.T, db *sql.DB) { judge(t, db) },
		migrate.Receiver: func(t *testing.T, db *sql.DB) { receive(t, db, everything) },
		migrate.Effects:  func(t *testing.T, db *sql.DB) { receive(t, db, "lock mark") },
		migrate.Operator: func(t *testing.T, db *sql.DB) {
			ledger, later := judge(t, db)
			ledgertest.Well(t, sqlserver.Inspect(ledger))
			if advanced, err := sqlserver.Inspect(ledger).Advance(t.Context(), later); err != nil || !advanced {
				t.Errorf("advance: %t, %v", advanced, err)
			}
		},
	}
	for _, role := range migrate.Roles() {
		work := works[role]
		if work == nil { // the migrator's are rights on the schema
			continue
		}
		t.Run(string(role), func(t *testing.T) {
			t.Parallel()
			server := servertest.SQLServerStandIn(t, nil)
			db := connect(t, newDatabase(t, server.URL("master"), true))
			must(t, migrate.Inbox(t.Context(), db, migrate.SQLServer))
			denyOthers(t, server, role)
			work(t, db)
		})
	}
}

// denyOthers denies the login all rights on tables except the rights of a role.
func denyOthers(t *testing.T, server *tds.Server, role migrate.Role) {
	t.Helper()
	rights, err := migrate.Rights(migrate.SQLServer, role, "", "", "")
	must(t, err)
	var granted []string
	for _, right := range rights {
		verbs, table, _ := strings.Cut(right, " ON ")
		for _, verb := range strings.Split(verbs, ", ") {
			granted = append(granted, verb+" ON "+table)
		}
	}
	for _, table := range []string{"bridge_ledger", "bridge_identity", "bridge_watermark", "bridge_ledger_version",
		"bridge_inbox", "bridge_inbox_pending", "bridge_mark", "bridge_kept", "bridge_inbox_version"} {
		for _, verb := range []string{"SELECT", "INSERT", "UPDATE", "DELETE"} {
			if right := verb + " ON " + table; !slices.Contains(granted, right) {
				server.Deny(right)
			}
		}
	}
}

// send commits a plain message, one that its row carries, and one for later.
func send(t *testing.T, db *sql.DB) (ledger *sqlserver.Ledger, plain, later uuid.UUID) {
	t.Helper()
	ledger, plain, later = open(t, db), newID(), newID()
	tx := begin(t, db, nil)
	must(t, ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(plain)))
	must(t, ledger.Record(t.Context(), bridge.SQL(tx), []driver.Entry{{ID: newID(), Message: []byte("m"), Unpublished: true}}))
	must(t, ledger.Record(t.Context(), bridge.SQL(tx), []driver.Entry{{ID: later, Message: []byte("m"), NotBefore: time.Now().Add(time.Hour)}}))
	must(t, tx.Commit())
	return ledger, plain, later
}

// judge calls the ledger as a verifier does.
func judge(t *testing.T, db *sql.DB) (*sqlserver.Ledger, uuid.UUID) {
	t.Helper()
	ledger, plain, later := send(t, db)
	must(t, prove(t, ledger))
	ids := []uuid.UUID{newID()}
	_, _, err := ledger.Recent(t.Context(), ids, time.Minute)
	must(t, err)
	rows := due(t, ledger)
	claimed, err := ledger.Claim(t.Context(), rows)
	must(t, err)
	if len(claimed) != 1 {
		t.Errorf("%d messages are claimed", len(claimed))
	}
	must(t, ledger.Touch(t.Context(), ids))
	forget(t, ledger, ids...)
	_, err = ledger.Orphans(t.Context(), time.Hour, 10)
	must(t, err)
	execute(t, db, "UPDATE bridge_ledger SET recorded_at = DATEADD(hour, -2, recorded_at) WHERE id = '"+plain.String()+"'")
	swept, err := ledger.Sweep(t.Context(), time.Hour, 10)
	must(t, err)
	if len(swept) != 1 || swept[0].ID != plain {
		t.Errorf("swept is %v", swept)
	}
	_, err = ledger.SweptBefore(t.Context())
	must(t, err)
	return ledger, later
}

// receive calls the inbox's verbs, up to one of a name.
func receive(t *testing.T, db *sql.DB, before string) {
	t.Helper()
	inbox, err := sqlserver.OpenInbox(t.Context(), db)
	must(t, err)
	for _, verb := range ledgertest.Verbs(inbox, "consumer", driver.Pending{Key: "key", State: driver.Ready, Run: "r", Message: []byte("m")}) {
		if verb.Name == before {
			return
		}
		tx := begin(t, db, nil)
		must(t, verb.Do(t.Context(), bridge.SQL(tx)))
		must(t, tx.Commit())
	}
}
