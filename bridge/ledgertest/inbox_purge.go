package ledgertest

import (
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// purgeTests are the promises of driver.Claims.
var purgeTests = []test[*inbox]{
	{"claims are read in the order of keys, page by page, with their age", testClaimed},
	{"of the named claims, only claims above an age are forgotten", testForgetClaims},
	{"many claims are forgotten at once", testForgetManyClaims},
}

func (i *inbox) claimed(t *testing.T, consumer, after string, limit int) []driver.Claimed {
	t.Helper()
	return alone(t, i, "read claims", func(tx bridge.Tx) ([]driver.Claimed, error) {
		return i.Claimed(t.Context(), tx, consumer, after, limit)
	})
}

func (i *inbox) forget(t *testing.T, consumer string, age time.Duration, keys ...string) int64 {
	t.Helper()
	return alone(t, i, "forget", func(tx bridge.Tx) (int64, error) { return i.Forget(t.Context(), tx, consumer, keys, age) })
}

func testClaimed(t *testing.T, i *inbox) {
	const consumer = "reads claims"
	keys := []string{"1", "B", "a", "b", "é"}
	for _, n := range []int{3, 1, 4, 0, 2} {
		i.claim(t, consumer, keys[n])
	}
	i.claim(t, consumer+"'", "c")
	expectPages(t, keys, func(after string, limit int) (page []string) {
		for _, c := range i.claimed(t, consumer, after, limit) {
			if c.Age < -2*time.Second || c.Age > wait { // SQLite's claims have whole seconds
				t.Errorf("%q is %v old", c.Key, c.Age)
			}
			page = append(page, c.Key)
		}
		return page
	})
}

func testForgetClaims(t *testing.T, i *inbox) {
	const consumer = "forgets claims"
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		i.claim(t, consumer, key)
		i.claim(t, consumer+"'", key)
	}
	expect(t, "number of claims that are an hour old", i.forget(t, consumer, time.Hour, "a", "b", "c", "d", "e"), 0)
	// Every age is greater than minus a minute.
	expect(t, "number of old claims", i.forget(t, consumer, -time.Minute, "b", "c", "d", "none"), 3)
	expect(t, "number of old claims left", i.forget(t, consumer, -time.Minute, "b", "c", "d", "none"), 0)
	expectClaimed(t, i.claim(t, consumer, "a"), false)
	expectClaimed(t, i.claim(t, consumer, "b"), true)
	expectClaimed(t, i.claim(t, consumer, "e"), false)
	expectClaimed(t, i.claim(t, consumer+"'", "c"), false)
}

func testForgetManyClaims(t *testing.T, i *inbox) {
	const consumer = "forgets many"
	var keys []string
	tx := begin(t, i.db)
	for range 250 {
		keys = append(keys, newID().String())
		expectClaimed(t, i.claimIn(t, tx, consumer, keys[len(keys)-1]), true)
	}
	check(t, tx.Commit(), "commit")
	expect(t, "number of forgotten", i.forget(t, consumer, -time.Minute, keys[:249]...), 249)
	if left := i.claimed(t, consumer, "", 10); len(left) != 1 || left[0].Key != keys[249] {
		t.Errorf("left is %v", left)
	}
	expect(t, "number of none", i.forget(t, consumer, -time.Minute), 0)
}
