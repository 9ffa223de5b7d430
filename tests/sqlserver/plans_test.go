package sqlserver_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// A ledger is usually empty, so its statistics become stale every 500 changes.
func TestThePlansOutliveTheStatistics(t *testing.T) {
	server, ledger := onStandIn(t, nil)
	pass := func() {
		ids := []uuid.UUID{newID()}
		for range 100 {
			ids = append(ids, newID())
		}
		tx := recorded(t, ledger, ids[1:]...)
		must(t, ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(ids[:1]...)))
		must(t, tx.Commit())
		for _, asked := range [][]uuid.UUID{ids[:1], ids[1:]} {
			found, _, err := ledger.Committed(t.Context(), asked)
			must(t, err)
			if len(found) != len(asked) {
				t.Errorf("the lookup finds %d of %d", len(found), len(asked))
			}
			forget(t, ledger, asked...)
		}
		expectOutcome(t, ledger, ids[0], driver.RolledBack)
	}
	pass()
	before := server.Compilations()
	for range 10 { // 2,020 changes
		pass()
	}
	if more := server.Compilations() - before; more > 0 {
		t.Errorf("%d statements were compiled anew", more)
	}
}

// The driver declares the length of every parameter, also of the inbox's texts and messages.
func TestKeysOfAllLengthsShareAFewPlans(t *testing.T) {
	server := servertest.SQLServerStandIn(t, nil)
	db := connect(t, newDatabase(t, server.URL("master"), true))
	must(t, migrate.Inbox(t.Context(), db, migrate.SQLServer))
	inbox, err := sqlserver.OpenInbox(t.Context(), db)
	must(t, err)
	plans := make(map[string]int)
	pass := func(consumer, key, run, failure string, message []byte) {
		tx := begin(t, db, nil)
		p := driver.Pending{Key: key, State: driver.Ready, Run: run, Attempts: 1, Error: failure, Message: message}
		for _, v := range ledgertest.Verbs(inbox, consumer, p) {
			before := server.Compilations()
			must(t, v.Do(t.Context(), bridge.SQL(tx)))
			plans[v.Name] += server.Compilations() - before
		}
		must(t, tx.Rollback())
	}
	const longest = 255
	for n := 1; n <= longest; n += 2 {
		pass(strings.Repeat("c", n), strings.Repeat("k", longest+1-n), strings.Repeat("r", 1+n%36),
			strings.Repeat("😀é \t", n%250)+" ", bytes.Repeat([]byte{0, 'm', 0}, 12*n))
	}
	for what, n := range plans {
		if n > 10 {
			t.Errorf("%s: %d plans", what, n)
		}
	}
}
