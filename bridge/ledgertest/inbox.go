package ledgertest

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// RunInbox tests every promise of driver.Inbox on the inbox of h.
func RunInbox(t *testing.T, h Harness) {
	connect := h.create(t)
	box := &inbox{Harness: h, connect: connect, db: connect()}
	if _, err := h.OpenInbox(t.Context(), box.db); !errors.Is(err, bridge.ErrNoSchema) || !strings.Contains(err.Error(), "migrate.Inbox") {
		t.Errorf("open without table: %v, must be %v and name migrate.Inbox", err, bridge.ErrNoSchema)
	}
	for range 2 {
		check(t, h.MigrateInbox(t.Context(), box.db), "migrate")
	}
	var err error
	box.Inbox, err = h.OpenInbox(t.Context(), box.db)
	check(t, err, "open inbox")
	run(t, h, box, slices.Concat([]test[*inbox]{
		{"a key is claimed once by each consumer, and a rollback releases it", testClaim},
		{"keys and consumers that differ in case, in spaces or in accents are different", testClaimCase},
		{"an open transaction passes the fence", testFence},
		{"a claim of several keys claims the new ones, and the transaction goes on", testClaimMany},
		{"a claim of one key or several waits for another's claim of one, and gets that key only after its rollback", testClaimWaits},
		{"concurrent claims of overlapping keys, some rolled back, get each key once", testClaimManyAtOnce},
		{"keys that do not ascend are refused", testClaimAscending},
	}, pendingTestsOfDriver, purgeTests), slices.Concat([]test[*inbox]{
		{"consumers and keys have 1 to 255 bytes and no NUL, and every verb refuses others", testNames},
	}, pendingTestsOfServer), func(*testing.T) {})
	runEntities(t, h, box.db, box.Inbox)
	if h.Driver {
		return
	}
	t.Run("no statement by key reads a whole table or waits for another transaction's row", func(t *testing.T) { testInboxByKey(t, box) })
	t.Run("tables of the next version serve this release, tables of later ones do not", func(t *testing.T) {
		db := h.create(t)()
		check(t, h.MigrateInbox(t.Context(), db), "migrate")
		h.raise(t, db, "inbox")
		_, err := h.OpenInbox(t.Context(), db)
		check(t, err, "open inbox of the next version")
		check(t, h.MigrateInbox(t.Context(), db), "migrate, with nothing to do")
		h.raise(t, db, "inbox")
		if _, err := h.OpenInbox(t.Context(), db); !errors.Is(err, bridge.ErrNoSchema) {
			t.Errorf("open: %v, must be %v", err, bridge.ErrNoSchema)
		}
	})
}

type inbox struct {
	Harness
	driver.Inbox
	connect func() *sql.DB
	db      *sql.DB
}

// alone calls do in a transaction of its own, commits, and returns its result.
func alone[R any](t *testing.T, i *inbox, doing string, do func(tx bridge.Tx) (R, error)) R {
	t.Helper()
	tx := begin(t, i.db)
	given, err := do(i.in(tx))
	check(t, err, doing)
	check(t, tx.Commit(), "commit")
	return given
}

func (i *inbox) claim(t *testing.T, consumer, key string) bool {
	t.Helper()
	return alone(t, i, "claim", func(tx bridge.Tx) (bool, error) { return i.claimOne(t, tx, consumer, key) })
}

func (i *inbox) claimIn(t *testing.T, tx *sql.Tx, consumer, key string) bool {
	t.Helper()
	claimed, err := i.claimOne(t, i.in(tx), consumer, key)
	check(t, err, "claim")
	return claimed
}

func (i *inbox) claimOne(t *testing.T, tx bridge.Tx, consumer, key string) (bool, error) {
	fresh, err := i.Claim(t.Context(), tx, consumer, []string{key})
	return len(fresh) == 1, err
}

func expectClaimed(t *testing.T, claimed, want bool) {
	t.Helper()
	if claimed != want {
		t.Fatalf("the claim is %t, must be %t", claimed, want)
	}
}

func testClaim(t *testing.T, i *inbox) {
	key := newID().String()
	tx := begin(t, i.db)
	expectClaimed(t, i.claimIn(t, tx, "a", key), true)
	expectClaimed(t, i.claimIn(t, tx, "a", key), false)
	check(t, tx.Rollback(), "roll back")
	for _, consumer := range []string{"a", "b"} {
		expectClaimed(t, i.claim(t, consumer, key), true)
		expectClaimed(t, i.claim(t, consumer, key), false)
	}
}

func testClaimCase(t *testing.T, i *inbox) {
	key := newID().String()
	for _, other := range []string{
		key, key + " ", key + "  ", " " + key, key + "\t", key + "\n", key + "x", key + "X", key + "x ",
		key + "a", key + "ä", key + "a\u0308", key + "Ä", key + "ß", key + "ss", key + "'", key + "\\",
	} {
		expectClaimed(t, i.claim(t, "a", other), true)
		expectClaimed(t, i.claim(t, other, "a"), true)
		expectClaimed(t, i.claim(t, "a", other), false)
		expectClaimed(t, i.claim(t, other, "a"), false)
	}
}

// testNames: a database may compare bytes as if NULs followed the shorter value, or be unable to
// store a NUL. Then it could not distinguish two such keys.
func testNames(t *testing.T, i *inbox) {
	long := newName() + strings.Repeat("ä", 109) + "x" // 255 bytes
	consumer, good := newName(), pending(driver.Ready, newName())
	i.inTx(t, func(tx *sql.Tx) {
		for _, v := range Verbs(i, long, pending(driver.Ready, long)) {
			check(t, v.Do(t.Context(), i.in(tx)), "a consumer and a key of 255 bytes")
		}
	})
	expectClaimed(t, i.claim(t, consumer, good.Key), true)
	i.add(t, consumer, good, -time.Hour)
	refused := func(what, says string, do func(tx bridge.Tx) error) {
		t.Helper()
		tx := begin(t, i.db)
		if err := do(i.in(tx)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, must be an error that says %s", what, err, says)
		}
		check(t, tx.Rollback(), "roll back")
	}
	for _, bad := range []struct{ consumer, key, says string }{
		{consumer, "", "0 bytes"}, {"", good.Key, "0 bytes"},
		{consumer, long + "x", "256 bytes"}, {long + "x", good.Key, "256 bytes"},
		{consumer, good.Key + "\x00", "NUL"}, {consumer + "\x00", good.Key, "NUL"}, {consumer, "\x00", "NUL"},
	} {
		p := good
		p.Key = bad.key
		for _, v := range Verbs(i, bad.consumer, p) {
			if v.ByKey || bad.consumer != consumer {
				refused(fmt.Sprintf("%s %q of %q", v.Name, bad.key, bad.consumer), bad.says, func(tx bridge.Tx) error { return v.Do(t.Context(), tx) })
			}
		}
	}
	for mark, says := range map[string]string{"": "0 bytes", long + "x": "256 bytes", "8\x00": "NUL"} {
		refused(fmt.Sprintf("mark %q", mark), says, func(tx bridge.Tx) error { return i.SetMark(t.Context(), tx, long, long, mark) })
	}
	_, found := i.lookUp(t, consumer, good.Key)
	expectPending(t, found, good)
	expectClaimed(t, i.claim(t, consumer, good.Key), false)
}
