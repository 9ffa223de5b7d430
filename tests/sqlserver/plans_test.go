package sqlserver_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/tds"
)

// The plans are the worst that the hints allow, and one row of another transaction is
// open.
func TestNoStatementByKeyMeetsTheRowsOfOthers(t *testing.T) {
	for name, snapshot := range map[string]bool{"locking": false, "snapshot": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.SQLServerStandIn(t, &tds.Options{Scan: true})
			db := connect(t, newDatabase(t, server.URL("master"), snapshot))
			execute(t, db, ordersTable)
			ledger := open(t, db)
			ownTable, err := sqlserver.OpenOwnTable(t.Context(), db, orders)
			must(t, err)
			parked := func(id uuid.UUID) []bridge.Parked { return []bridge.Parked{{ID: id, Message: []byte("x")}} }

			held := recorded(t, ledger, newID())
			must(t, ledger.Park(t.Context(), held, parked(newID())))
			placed(t, ownTable, newID())

			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			doing := func(what string, err error) {
				t.Helper()
				if err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			settled := func(ledger bridge.Ledger, id uuid.UUID, want bridge.Outcome) {
				t.Helper()
				if outcome, err := ledger.Settle(ctx, id, patience); err != nil || outcome != want {
					t.Errorf("settle: %q, %v, must be %q", outcome, err, want)
				}
			}
			id := newID()
			tx := begin(t, db, nil)
			doing("record", ledger.Record(ctx, tx, []uuid.UUID{id}))
			doing("park", ledger.Park(ctx, tx, parked(id)))
			must(t, tx.Commit())
			found, err := ledger.Committed(ctx, []uuid.UUID{newID(), id})
			doing("look up", err)
			if !slices.Equal(found, []uuid.UUID{id}) {
				t.Errorf("the lookup finds %v", found)
			}
			settled(ledger, id, bridge.Committed)
			settled(ledger, newID(), bridge.RolledBack)
			orphans, err := ledger.Orphans(ctx, 0, 10)
			doing("list orphans", err)
			if len(orphans) > 0 {
				t.Errorf("orphans: %v", orphans)
			}
			removed, err := ledger.Unpark(ctx, uuid.Nil, 10, func(context.Context, []bridge.Parked) error { return nil })
			doing("unpark", err)
			if removed != 1 {
				t.Errorf("%d messages are unparked", removed)
			}
			execute(t, db, "UPDATE bridge_ledger SET recorded_at = DATEADD(hour, -2, recorded_at) WHERE id = '"+id.String()+"'")
			swept, err := ledger.Sweep(ctx, time.Hour, 10)
			doing("sweep", err)
			if len(swept) != 1 {
				t.Errorf("swept: %v", swept)
			}
			doing("forget", ledger.Forget(ctx, []uuid.UUID{id, newID()}))

			order := newID()
			tx = begin(t, db, nil)
			insertOrder(t, tx, order)
			doing("record in an own table", ownTable.Record(ctx, tx, []uuid.UUID{order}))
			must(t, tx.Commit())
			settled(ownTable, order, bridge.Committed)
			settled(ownTable, newID(), bridge.RolledBack)
		})
	}
}

// A ledger is empty most of the time: its statistics go stale every 500 changes.
func TestThePlansOutliveTheStatistics(t *testing.T) {
	server, ledger := onStandIn(t, nil)
	pass := func() {
		ids := []uuid.UUID{newID()}
		for range 100 {
			ids = append(ids, newID())
		}
		tx := recorded(t, ledger, ids[1:]...)
		must(t, ledger.Record(t.Context(), tx, ids[:1]))
		must(t, tx.Commit())
		for _, asked := range [][]uuid.UUID{ids[:1], ids[1:]} {
			found, err := ledger.Committed(t.Context(), asked)
			must(t, err)
			if len(found) != len(asked) {
				t.Errorf("the lookup finds %d of %d", len(found), len(asked))
			}
			must(t, ledger.Forget(t.Context(), asked))
		}
		expectOutcome(t, ledger, ids[0], bridge.RolledBack)
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

// The driver declares the length of every parameter.
func TestMessagesOfAllLengthsShareAFewPlans(t *testing.T) {
	server, ledger := onStandIn(t, nil)
	before := server.Compilations()
	want := make(map[uuid.UUID]string)
	for n := 0; n < 10_000; n += 99 {
		id := newID()
		want[id] = strings.Repeat("x", n)
		tx := recorded(t, ledger, id)
		must(t, ledger.Park(t.Context(), tx, []bridge.Parked{{ID: id, Message: []byte(want[id])}}))
		must(t, tx.Commit())
	}
	if n := server.Compilations() - before; n > 10 {
		t.Errorf("%d messages have made %d plans", len(want), n)
	}
	_, err := ledger.Unpark(t.Context(), uuid.Nil, 500, func(_ context.Context, messages []bridge.Parked) error {
		for _, m := range messages {
			if string(m.Message) != want[m.ID] {
				t.Errorf("a message of %d bytes has %d", len(want[m.ID]), len(m.Message))
			}
			delete(want, m.ID)
		}
		return nil
	})
	must(t, err)
	if len(want) > 0 {
		t.Errorf("%d messages are missing", len(want))
	}
}
