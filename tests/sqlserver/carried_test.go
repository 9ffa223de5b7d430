package sqlserver_test

import (
	"bytes"
	"database/sql"
	"strings"
	"testing"

	"github.com/google/uuid"
	mssql "github.com/microsoft/go-mssqldb"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// carry commits rows whose messages are due at once.
func carry(t *testing.T, ledger driver.Ledger, entries ...driver.Entry) {
	t.Helper()
	for i := range entries {
		entries[i].Unpublished = true
	}
	tx := begin(t, ledger.DB(), nil)
	must(t, ledger.Record(t.Context(), bridge.SQL(tx), entries))
	must(t, tx.Commit())
}

func due(t *testing.T, ledger driver.Ledger) []driver.DueRow {
	t.Helper()
	rows, _, err := ledger.Due(t.Context(), driver.DueRow{}, 500)
	must(t, err)
	return rows
}

// The driver declares the length of every parameter. One statement carries one message, another
// one several, as pieces of one parameter.
func TestCarriedMessagesOfAllLengthsShareAFewPlansAndStayExact(t *testing.T) {
	server, ledger := onStandIn(t, nil)
	before := server.Compilations()
	want := make(map[uuid.UUID]string)
	for n := 1; n < 10_000; n += 499 {
		var entries []driver.Entry
		for i := range 1 + n%17 {
			e := driver.Entry{ID: newID(), Message: bytes.Repeat([]byte{0, byte(i), 'm'}, n)[:n]}
			want[e.ID] = string(e.Message)
			entries = append(entries, e)
		}
		carry(t, ledger, entries...)
		one := driver.Entry{ID: newID(), Message: entries[0].Message}
		want[one.ID] = string(one.Message)
		carry(t, ledger, one)
	}
	for range 2 { // the second time for rows whose stage time has moved
		rows := due(t, ledger)
		for len(rows) > 0 {
			n := min(len(rows), 7)
			claimed, err := ledger.Claim(t.Context(), rows[:n])
			must(t, err)
			for _, c := range claimed {
				if string(c.Message) != want[c.ID] {
					t.Errorf("a message of %d bytes has %d, or others", len(want[c.ID]), len(c.Message))
				}
				delete(want, c.ID)
			}
			rows = rows[n:]
		}
	}
	if len(want) > 0 {
		t.Errorf("%d messages are missing", len(want))
	}
	if n := server.Compilations() - before; n > 20 {
		t.Errorf("they have made %d plans", n)
	}
}

// The statistics of stage times become stale as the statistics of IDs do.
func TestThePlansOfCarriedMessagesOutliveTheStatistics(t *testing.T) {
	server, ledger := onStandIn(t, nil)
	pass := func() {
		var entries []driver.Entry
		var ids []uuid.UUID
		for range 100 {
			ids = append(ids, newID())
			entries = append(entries, driver.Entry{ID: ids[len(ids)-1], Message: []byte("m")})
		}
		carry(t, ledger, entries...)
		rows := due(t, ledger)
		claimed, err := ledger.Claim(t.Context(), rows)
		must(t, err)
		must(t, ledger.Touch(t.Context(), ids))
		if len(rows) != len(ids) || len(claimed) != len(ids) {
			t.Errorf("%d are due, %d claimed, must be %d", len(rows), len(claimed), len(ids))
		}
		forget(t, ledger, ids...)
	}
	pass()
	before := server.Compilations()
	for range 5 { // 2,000 changes
		pass()
	}
	if more := server.Compilations() - before; more > 0 {
		t.Errorf("%d statements were compiled anew", more)
	}
}

// sqlcmd turns QUOTED_IDENTIFIER off, and a filtered index requires it on.
func TestThePrintedScriptSetsTheOptionsOfAFilteredIndex(t *testing.T) {
	db := connect(t, servertest.SQLServerDB(t, servertest.SQLServer(t, nil), true))
	db.SetMaxOpenConns(1)
	conn, err := db.Conn(t.Context())
	must(t, err)
	defer func() { must(t, conn.Close()) }()
	execute(t, conn, "SET QUOTED_IDENTIFIER OFF")
	var script strings.Builder
	must(t, migrate.Print(&script, migrate.SQLServer, migrate.LedgerPart, 0))
	for range 2 {
		for batch := range strings.SplitSeq(script.String(), "\nGO\n") {
			if strings.TrimSpace(batch) != "" {
				execute(t, conn, batch)
			}
		}
	}
	execute(t, conn, "SET QUOTED_IDENTIFIER OFF")
	if _, err := conn.ExecContext(t.Context(), "DELETE FROM bridge_ledger"); err == nil {
		t.Error("a DELETE without QUOTED_IDENTIFIER passes, which the package's comment denies")
	}
}

// Automatic tuning, or a person, may drop an index that no other statement uses.
func TestAnErrorNamesAMissingIndex(t *testing.T) {
	onBoth(t, func(t *testing.T, address string) {
		ledger := open(t, connect(t, address))
		execute(t, ledger.DB(), "DROP INDEX bridge_ledger_stage_at ON bridge_ledger")
		_, _, err := ledger.Due(t.Context(), driver.DueRow{}, 500)
		if err == nil || !strings.Contains(err.Error(), "index") || !strings.Contains(err.Error(), "bridgectl migrate print") {
			t.Errorf("list due rows: %v", err)
		}
		must(t, prove(t, ledger)) // judging needs no such index
	})
}

// A connection may begin with other settings, as the driver's SessionInitSQL.
func TestTheSettingsOfAPoolCutNoClaimedMessage(t *testing.T) {
	connector, err := mssql.NewConnector(newDatabase(t, servertest.SQLServer(t, nil), true))
	must(t, err)
	connector.SessionInitSQL = otherSettings
	db := sql.OpenDB(connector)
	defer db.Close()
	ledger := open(t, db)
	want := []byte("message")
	carry(t, ledger, driver.Entry{ID: newID(), Message: want})
	claimed, err := ledger.Claim(t.Context(), due(t, ledger))
	must(t, err)
	if len(claimed) != 1 || !bytes.Equal(claimed[0].Message, want) {
		t.Errorf("%+v are claimed, must be %q", claimed, want)
	}
}
