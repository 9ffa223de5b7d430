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

// RunInbox tests that the inbox of h keeps every promise of driver.Inbox.
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
		{"a key is claimed once by each consumer, and a rollback gives it back", testClaim},
		{"keys and consumers that differ in case, in spaces or in accents are different", testClaimCase},
		{"a claim waits for the same claim of another, and is given after its rollback alone", testClaimWaits},
	}, pendingTestsOfDriver, purgeTests), slices.Concat([]test[*inbox]{
		{"a key of the greatest length is claimed, and none that is empty or longer", testClaimLength},
		{"a key or a consumer with a NUL byte is an error, and touches nobody's key", testNULKey},
	}, pendingTestsOfServer), func(*testing.T) {})
	runEntities(t, h, box.db, box.Inbox)
	if h.Driver {
		return
	}
	t.Run("no statement by key reads a table through or waits for a row of others", func(t *testing.T) { testInboxByKey(t, box) })
	t.Run("tables of the next version serve this release, of later ones not", func(t *testing.T) {
		db := h.create(t)()
		check(t, h.MigrateInbox(t.Context(), db), "migrate")
		raise(t, db, "inbox")
		_, err := h.OpenInbox(t.Context(), db)
		check(t, err, "open inbox of the next version")
		check(t, h.MigrateInbox(t.Context(), db), "migrate, with nothing to do")
		raise(t, db, "inbox")
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

// alone does one thing in a transaction of its own, commits, and returns what it has given.
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
	return alone(t, i, "claim", func(tx bridge.Tx) (bool, error) { return i.Claim(t.Context(), tx, consumer, key) })
}

func (i *inbox) claimIn(t *testing.T, tx *sql.Tx, consumer, key string) bool {
	t.Helper()
	claimed, err := i.Claim(t.Context(), i.in(tx), consumer, key)
	check(t, err, "claim")
	return claimed
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

func testClaimWaits(t *testing.T, i *inbox) {
	for want, end := range map[bool]func(*sql.Tx) error{false: (*sql.Tx).Commit, true: (*sql.Tx).Rollback} {
		key := newID().String()
		first, second := begin(t, i.db), begin(t, i.db)
		expectClaimed(t, i.claimIn(t, first, "a", key), true)
		done := beside(func() (bool, error) { return i.Claim(t.Context(), i.in(second), "a", key) })
		awaitWaiting(t, i.Harness, i.db, 1)
		check(t, end(first), "end the first transaction")
		claimed, err := next(t, "the second claim", done)
		check(t, err, "claim")
		expectClaimed(t, claimed, want)
		check(t, second.Commit(), "commit")
		expectClaimed(t, i.claim(t, "a", key), false)
	}
}

func testClaimLength(t *testing.T, i *inbox) {
	long := strings.Repeat("ä", 127) + "x" // 255 bytes
	expectClaimed(t, i.claim(t, long, long), true)
	expectClaimed(t, i.claim(t, long, long), false)
	tooLong := strings.Repeat("x", 256)
	for _, pair := range [][2]string{{"a", tooLong}, {tooLong, "k"}, {"a", ""}, {"", "k"}} {
		tx := begin(t, i.db)
		if claimed, err := i.Claim(t.Context(), i.in(tx), pair[0], pair[1]); claimed || err == nil {
			t.Errorf("a claim with %d and %d bytes: %t, %v", len(pair[0]), len(pair[1]), claimed, err)
		}
		check(t, tx.Rollback(), "roll back")
	}
}

// A database may compare bytes as if the shorter value went on in NULs, or be unable to
// store one: with such a key, one could not be told from another's.
func testNULKey(t *testing.T, i *inbox) {
	consumer, key := newID().String(), newID().String()
	expectClaimed(t, i.claim(t, consumer, key), true)
	i.add(t, consumer, pending(driver.Ready, key), -time.Hour)
	for _, pair := range [][2]string{{consumer, key + "\x00"}, {consumer + "\x00", key}, {consumer, "\x00" + key}, {consumer, "\x00"}} {
		c, k := pair[0], pair[1]
		for doing, do := range map[string]func(tx *sql.Tx) error{
			"claim": func(tx *sql.Tx) error {
				_, err := i.Claim(t.Context(), i.in(tx), c, k)
				return err
			},
			"unclaim": func(tx *sql.Tx) error { return i.Unclaim(t.Context(), i.in(tx), c, k) },
			"forget": func(tx *sql.Tx) error {
				_, err := i.Forget(t.Context(), i.in(tx), c, []string{newID().String(), k}, -time.Hour)
				return err
			},
			"add": func(tx *sql.Tx) error {
				_, err := i.AddPending(t.Context(), i.in(tx), c, pending(driver.Ready, k), 0)
				return err
			},
			"look up": func(tx *sql.Tx) error {
				_, _, err := i.LookUp(t.Context(), i.in(tx), c, k)
				return err
			},
			"change": func(tx *sql.Tx) error {
				_, err := i.ChangePending(t.Context(), i.in(tx), c, "run 1", pending(driver.Failed, k), 0)
				return err
			},
			"attach": func(tx *sql.Tx) error {
				_, err := i.AttachMessage(t.Context(), i.in(tx), c, k, "run 1", []byte("m"))
				return err
			},
			"remove": func(tx *sql.Tx) error {
				_, err := i.RemovePending(t.Context(), i.in(tx), c, k, "run 1")
				return err
			},
			"remove without a message": func(tx *sql.Tx) error {
				_, err := i.RemoveBarePending(t.Context(), i.in(tx), c, k, "run 1")
				return err
			},
		} {
			tx := begin(t, i.db)
			expectNUL(t, fmt.Sprintf("%s %q of %q", doing, k, c), do(tx))
			check(t, tx.Rollback(), "roll back")
		}
	}
	for doing, do := range map[string]func(tx *sql.Tx, c string) error{
		"take": func(tx *sql.Tx, c string) error {
			_, err := i.TakePending(t.Context(), i.in(tx), c, driver.Ready)
			return err
		},
		"doubt": func(tx *sql.Tx, c string) error {
			_, err := i.DoubtOverdue(t.Context(), i.in(tx), c)
			return err
		},
		"list": func(tx *sql.Tx, c string) error {
			_, err := i.ListPending(t.Context(), i.in(tx), c, driver.Ready, "", 1)
			return err
		},
		"count": func(tx *sql.Tx, c string) error {
			_, err := i.CountPending(t.Context(), i.in(tx), c)
			return err
		},
		"read claims": func(tx *sql.Tx, c string) error {
			_, err := i.Claimed(t.Context(), i.in(tx), c, "", 1)
			return err
		},
	} {
		tx := begin(t, i.db)
		expectNUL(t, doing, do(tx, consumer+"\x00"))
		check(t, tx.Rollback(), "roll back")
	}
	expectClaimed(t, i.claim(t, consumer, key), false)
	if _, p := i.lookUp(t, consumer, key); p == nil || p.State != driver.Ready {
		t.Errorf("pending is %+v, must be as it was", p)
	}
}

func expectNUL(t *testing.T, doing string, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "NUL") {
		t.Errorf("%s: %v, must be an error that says NUL", doing, err)
	}
}
