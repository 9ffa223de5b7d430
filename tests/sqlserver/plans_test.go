package sqlserver_test

import (
	"bytes"
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
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
			parked := func(id uuid.UUID) []driver.Parked { return []driver.Parked{{ID: id, Message: []byte("x")}} }

			held := recorded(t, ledger, newID())
			must(t, ledger.Park(t.Context(), bridge.SQL(held), parked(newID())))
			placed(t, ownTable, newID())

			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			doing := func(what string, err error) {
				t.Helper()
				if err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			settled := func(ledger driver.Ledger, id uuid.UUID, want driver.Outcome) {
				t.Helper()
				if outcome, err := ledger.Settle(ctx, id, patience); err != nil || outcome != want {
					t.Errorf("settle: %q, %v, must be %q", outcome, err, want)
				}
			}
			id := newID()
			tx := begin(t, db, nil)
			doing("record", ledger.Record(ctx, bridge.SQL(tx), []uuid.UUID{id}))
			doing("park", ledger.Park(ctx, bridge.SQL(tx), parked(id)))
			must(t, tx.Commit())
			found, err := ledger.Committed(ctx, []uuid.UUID{newID(), id})
			doing("look up", err)
			if !slices.Equal(found, []uuid.UUID{id}) {
				t.Errorf("the lookup finds %v", found)
			}
			settled(ledger, id, driver.Committed)
			settled(ledger, newID(), driver.RolledBack)
			orphans, err := ledger.Orphans(ctx, 0, 10)
			doing("list orphans", err)
			if len(orphans) > 0 {
				t.Errorf("orphans: %v", orphans)
			}
			removed, err := ledger.Unpark(ctx, uuid.Nil, 10, func(context.Context, []driver.Parked) error { return nil })
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
			doing("record in an own table", ownTable.Record(ctx, bridge.SQL(tx), []uuid.UUID{order}))
			must(t, tx.Commit())
			settled(ownTable, order, driver.Committed)
			settled(ownTable, newID(), driver.RolledBack)
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
		must(t, ledger.Record(t.Context(), bridge.SQL(tx), ids[:1]))
		must(t, tx.Commit())
		for _, asked := range [][]uuid.UUID{ids[:1], ids[1:]} {
			found, err := ledger.Committed(t.Context(), asked)
			must(t, err)
			if len(found) != len(asked) {
				t.Errorf("the lookup finds %d of %d", len(found), len(asked))
			}
			must(t, ledger.Forget(t.Context(), asked))
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

// The driver declares the length of every parameter.
func TestMessagesOfAllLengthsShareAFewPlans(t *testing.T) {
	server, ledger := onStandIn(t, nil)
	before := server.Compilations()
	want := make(map[uuid.UUID]string)
	for n := 0; n < 10_000; n += 99 {
		id := newID()
		want[id] = strings.Repeat("x", n)
		tx := recorded(t, ledger, id)
		must(t, ledger.Park(t.Context(), bridge.SQL(tx), []driver.Parked{{ID: id, Message: []byte(want[id])}}))
		must(t, tx.Commit())
	}
	if n := server.Compilations() - before; n > 10 {
		t.Errorf("%d messages have made %d plans", len(want), n)
	}
	_, err := ledger.Unpark(t.Context(), uuid.Nil, 500, func(_ context.Context, messages []driver.Parked) error {
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

// The same holds for the inbox's texts and messages.
func TestKeysOfAllLengthsShareAFewPlans(t *testing.T) {
	server := servertest.SQLServerStandIn(t, nil)
	db := connect(t, newDatabase(t, server.URL("master"), true))
	must(t, migrate.Inbox(t.Context(), db, migrate.SQLServer))
	inbox, err := sqlserver.OpenInbox(t.Context(), db)
	must(t, err)
	plans := make(map[string]int)
	pass := func(consumer, key, run, failure string, message []byte) {
		ctx, tx := t.Context(), begin(t, db, nil)
		doing := func(what string, do func() (any, error), want any) {
			t.Helper()
			before := server.Compilations()
			got, err := do()
			plans[what] += server.Compilations() - before
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: %.500v, %v, must be %.500v", what, got, err, want)
			}
		}
		done := func(what string, do func() error) {
			t.Helper()
			doing(what, func() (any, error) { return nil, do() }, nil)
		}
		p := driver.Pending{Key: key, State: driver.Ready, Run: run, Attempts: 1, Error: failure}
		look := func() (any, error) {
			_, found, err := inbox.LookUp(ctx, bridge.SQL(tx), consumer, key)
			found.Since = time.Time{}
			return *found, err
		}
		doing("claim", func() (any, error) { return inbox.Claim(ctx, bridge.SQL(tx), consumer, key) }, true)
		doing("claim again", func() (any, error) { return inbox.Claim(ctx, bridge.SQL(tx), consumer, key) }, false)
		doing("add", func() (any, error) { return inbox.AddPending(ctx, bridge.SQL(tx), consumer, p, -time.Hour) }, true)
		doing("look", look, p)
		doing("attach", func() (any, error) { return inbox.AttachMessage(ctx, bridge.SQL(tx), consumer, key, run, message) }, true)
		p.Message = message
		doing("look", look, p)
		for _, state := range []driver.State{driver.Started, driver.Doubtful, driver.Ready, driver.Failed} {
			p.State = state
			doing("change", func() (any, error) { return inbox.ChangePending(ctx, bridge.SQL(tx), consumer, run, p, -time.Hour) }, true)
			doing("look", look, p)
			doing("take", func() (any, error) {
				taken, err := inbox.TakePending(ctx, bridge.SQL(tx), consumer, state)
				return taken.Key, err
			}, key)
			doing("list", func() (any, error) {
				listed, err := inbox.ListPending(ctx, bridge.SQL(tx), consumer, state, key[1:], 10)
				return len(listed), err
			}, 1)
		}
		doing("count", func() (any, error) { return inbox.CountPending(ctx, bridge.SQL(tx), consumer) }, map[driver.State]int64{driver.Failed: 1})
		doing("doubt", func() (any, error) { return inbox.DoubtOverdue(ctx, bridge.SQL(tx), consumer) }, int64(0))
		doing("remove bare", func() (any, error) { return inbox.RemoveBarePending(ctx, bridge.SQL(tx), consumer, key, run) }, false)
		doing("remove", func() (any, error) { return inbox.RemovePending(ctx, bridge.SQL(tx), consumer, key, run) }, true)
		doing("read claims", func() (any, error) {
			claims, err := inbox.Claimed(ctx, bridge.SQL(tx), consumer, key[1:], 10)
			return claims[0].Key, err
		}, key)
		doing("forget", func() (any, error) { return inbox.Forget(ctx, bridge.SQL(tx), consumer, []string{key}, -time.Minute) }, int64(1))
		done("unclaim", func() error { return inbox.Unclaim(ctx, bridge.SQL(tx), consumer, key) })

		doing("lock mark", func() (any, error) { return inbox.LockMark(ctx, bridge.SQL(tx), consumer, key) }, "")
		done("set mark", func() error { return inbox.SetMark(ctx, bridge.SQL(tx), consumer, key, key) })
		doing("lock mark", func() (any, error) { return inbox.LockMark(ctx, bridge.SQL(tx), consumer, key) }, key)
		doing("keep", func() (any, error) { return inbox.Keep(ctx, bridge.SQL(tx), consumer, key, 1, message) }, true)
		doing("keep again", func() (any, error) { return inbox.Keep(ctx, bridge.SQL(tx), consumer, key, 1, message) }, false)
		doing("count kept", func() (any, error) { return inbox.CountKept(ctx, bridge.SQL(tx), consumer, key) }, 1)
		doing("first kept", func() (any, error) {
			_, kept, err := inbox.FirstKept(ctx, bridge.SQL(tx), consumer, key)
			return kept, err
		}, message)
		doing("list kept", func() (any, error) {
			kept, err := inbox.KeptEntities(ctx, bridge.SQL(tx), consumer, 10)
			return kept[0].Entity + kept[0].Mark, err
		}, key+key)
		done("unkeep", func() error { return inbox.Unkeep(ctx, bridge.SQL(tx), consumer, key, 1) })
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
