package ledgertest

import (
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

func (i *inbox) take(t *testing.T, consumer string, state driver.State) (p *driver.Pending) {
	t.Helper()
	i.inTx(t, func(tx *sql.Tx) {
		var err error
		p, err = i.TakePending(bounded(t), i.in(tx), consumer, state)
		check(t, err, "take")
		if p != nil {
			taken := *p
			taken.Run = "taken"
			changed, err := i.ChangePending(t.Context(), i.in(tx), consumer, p.Run, taken, time.Hour)
			check(t, err, "change")
			expect(t, "changed", changed, true)
		}
	})
	return p
}

func testTakePending(t *testing.T, i *inbox) {
	const consumer = "takes"
	if p := i.take(t, consumer, driver.Ready); p != nil {
		t.Fatalf("took %+v of nothing", p)
	}
	i.add(t, consumer, pending(driver.Ready, "later"), time.Hour)
	i.add(t, consumer, pending(driver.Ready, "second"), -time.Minute)
	i.add(t, consumer, pending(driver.Ready, "first"), -time.Hour)
	i.add(t, consumer, pending(driver.Failed, "failed"), -time.Hour)
	bare := pending(driver.Ready, "bare")
	bare.Message = nil
	i.add(t, consumer, bare, -2*time.Hour)
	i.add(t, consumer, pending(driver.Ready, "third"), 0)
	for _, key := range []string{"first", "second", "third"} {
		expectPending(t, i.take(t, consumer, driver.Ready), pending(driver.Ready, key))
	}
	if p := i.take(t, consumer, driver.Ready); p != nil {
		t.Fatalf("took %+v, which is not due", p)
	}
	expectPending(t, i.take(t, consumer, driver.Failed), pending(driver.Failed, "failed"))
}

func testTakePendingBeside(t *testing.T, i *inbox) {
	if i.Overlap || i.OneWriter {
		t.Skip("the next test names the reason")
	}
	const consumer = "takes beside"
	keys := []string{"first", "second", "third"}
	for n, key := range keys {
		i.add(t, consumer, pending(driver.Ready, key), -time.Hour+time.Duration(n)*time.Minute)
	}
	for _, key := range keys { // all in open transactions
		p, err := i.TakePending(bounded(t), i.in(begin(t, i.db)), consumer, driver.Ready)
		check(t, err, "take")
		expectPending(t, p, pending(driver.Ready, key))
	}
}

func testTakePendingLocked(t *testing.T, i *inbox) {
	if i.Overlap {
		t.Skip("here two takers may find the same message, and one of them cannot change it")
	}
	if i.OneWriter {
		t.Skip("takers take one after the other here")
	}
	const consumer = "takes locked"
	i.add(t, consumer, pending(driver.Ready, "first"), -time.Hour)
	i.add(t, consumer, pending(driver.Ready, "second"), -time.Minute)
	i.add(t, consumer, pending(driver.Ready, "third"), -time.Second)
	taker, remover := begin(t, i.db), begin(t, i.db)
	p, err := i.TakePending(bounded(t), i.in(taker), consumer, driver.Ready)
	check(t, err, "take")
	expectPending(t, p, pending(driver.Ready, "first"))
	_, err = i.RemovePending(bounded(t), i.in(remover), consumer, "second", "run 1")
	check(t, err, "remove")
	expectPending(t, i.take(t, consumer, driver.Ready), pending(driver.Ready, "third"))
	if p := i.take(t, consumer, driver.Ready); p != nil {
		t.Fatalf("took %+v, which another transaction has locked", p)
	}
	check(t, taker.Rollback(), "roll back")
	check(t, remover.Rollback(), "roll back")
	expectPending(t, i.take(t, consumer, driver.Ready), pending(driver.Ready, "first"))
	expectPending(t, i.take(t, consumer, driver.Ready), pending(driver.Ready, "second"))
}

func testDoubtOverdue(t *testing.T, i *inbox) {
	const consumer = "doubts"
	i.add(t, consumer, pending(driver.Started, "overdue"), -time.Second)
	i.add(t, consumer, pending(driver.Started, "under way"), time.Hour)
	i.add(t, consumer, pending(driver.Ready, "ready"), -time.Second)
	for _, want := range []int64{1, 0} {
		expect(t, "number of doubtful", alone(t, i, "doubt", func(tx bridge.Tx) (int64, error) {
			return i.DoubtOverdue(t.Context(), tx, consumer)
		}), want)
	}
	_, p := i.lookUp(t, consumer, "overdue")
	want := pending(driver.Doubtful, "overdue")
	want.Error = p.Error
	expectPending(t, p, want)
	if p.Error == "" {
		t.Error("it gives no reason")
	}
	taken := i.take(t, consumer, driver.Doubtful) // it is due at once
	expectPending(t, taken, want)
}

func testListPending(t *testing.T, i *inbox) {
	const consumer = "lists"
	keys := []string{"B", "a", "ab", "b", "é"}
	for n, key := range keys {
		i.add(t, consumer, pending(driver.Failed, key), time.Duration(-n)*time.Hour)
	}
	i.add(t, consumer, pending(driver.Doubtful, "aa"), 0)
	bare := driver.Pending{Key: "c", State: driver.Failed, Run: "r"}
	keys = slices.Insert(keys, 4, bare.Key)
	i.add(t, consumer, bare, 0)
	expectPages(t, keys, func(after string, limit int) (page []string) {
		for _, p := range alone(t, i, "list", func(tx bridge.Tx) ([]driver.Pending, error) {
			return i.ListPending(t.Context(), tx, consumer, driver.Failed, after, limit)
		}) {
			want := pending(driver.Failed, p.Key)
			if want.Message, want.Stored = nil, true; p.Key == bare.Key {
				want = bare
			}
			expectPending(t, &p, want)
			page = append(page, p.Key)
		}
		return page
	})
	if counts, want := i.counts(t, consumer), (map[driver.State]int64{driver.Failed: 6, driver.Doubtful: 1}); !maps.Equal(counts, want) {
		t.Errorf("counted %v, must be %v", counts, want)
	}
}

func (i *inbox) counts(t *testing.T, consumer string) map[driver.State]int64 {
	t.Helper()
	return alone(t, i, "count", func(tx bridge.Tx) (map[driver.State]int64, error) { return i.CountPending(t.Context(), tx, consumer) })
}

// expectPages reads page by page, and fails unless all pages together are want.
func expectPages(t *testing.T, want []string, read func(after string, limit int) (page []string)) {
	t.Helper()
	const limit = 2
	var all []string
	for after := ""; len(all) <= len(want); after = all[len(all)-1] {
		page := read(after, limit)
		all = append(all, page...)
		if len(page) < limit {
			break
		}
	}
	if !slices.Equal(all, want) {
		t.Errorf("read %q, must be %q", all, want)
	}
}

func testPendingConsumers(t *testing.T, i *inbox) {
	key := newID().String()
	i.add(t, "one", pending(driver.Ready, key), -time.Second)
	if _, p := i.lookUp(t, "other", key); p != nil {
		t.Errorf("another consumer finds %+v", p)
	}
	if p := i.take(t, "other", driver.Ready); p != nil {
		t.Errorf("another consumer takes %+v", p)
	}
	expect(t, "added by another consumer", i.add(t, "other", pending(driver.Ready, key), time.Hour), true)
	expect(t, "the other's count", i.counts(t, "other")[driver.Ready], 1)
}

func testPendingKeys(t *testing.T, i *inbox) {
	for _, key := range []string{"k", "K", "k ", " k", "kä", "ka\u0308", strings.Repeat("ä", 127) + "x"} {
		expect(t, fmt.Sprintf("%q added", key), i.add(t, "keys", pending(driver.Failed, key), 0), true)
		_, p := i.lookUp(t, "keys", key)
		expectPending(t, p, pending(driver.Failed, key))
	}
}
