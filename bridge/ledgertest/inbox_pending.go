package ledgertest

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// The promises of driver.PendingMessages.
var (
	pendingTestsOfDriver = []test[*inbox]{
		{"a released key may be claimed again", testReleasePending},
		{"the first of several adds of one key counts", testAddPending},
		{"a pending message is found with all its data, and a lookup distinguishes done and unknown keys", testLookUp},
		{"only the owner of the run changes or removes the row", testRun},
		{"a message is attached once, in any state", testAttachMessage},
		{"a row without a message can be recognised, and released", testReleaseOnlyBare},
		{"an error of any content and length is kept, shortened if necessary", testPendingError},
		{"due messages are taken in their order, and no others", testTakePending},
		{"a started and overdue message is doubtful", testDoubtOverdue},
		{"pending messages are listed by state in the order of keys, page by page, and counted", testListPending},
	}
	pendingTestsOfServer = []test[*inbox]{
		{"an add waits for another's add of the key, and is refused after its commit", testAddPendingWaits},
		{"no reader sees a key claimed without its row while it is being released", testLookUpAtOneMoment},
		{"no reader sees a key claimed without its row while it is being claimed", testLookUpWhileClaimed},
		{"concurrent takers take different messages", testTakePendingBeside},
		{"a message that another transaction has locked is not taken", testTakePendingLocked},
		{"consumers do not share pending messages", testPendingConsumers},
		{"pending keys differ as claimed keys do", testPendingKeys},
	}
)

func pending(state driver.State, key string) driver.Pending {
	return driver.Pending{Key: key, State: state, Run: "run 1", Attempts: 1, Message: []byte("message of " + key)}
}

// inTx runs fn in a transaction of its own, and commits.
func (i *inbox) inTx(t *testing.T, fn func(tx *sql.Tx)) {
	t.Helper()
	tx := begin(t, i.db)
	fn(tx)
	check(t, tx.Commit(), "commit")
}

func (i *inbox) add(t *testing.T, consumer string, p driver.Pending, due time.Duration) bool {
	t.Helper()
	return alone(t, i, "add", func(tx bridge.Tx) (bool, error) { return i.AddPending(t.Context(), tx, consumer, p, due) })
}

func (i *inbox) lookUp(t *testing.T, consumer, key string) (claimed bool, p *driver.Pending) {
	t.Helper()
	i.inTx(t, func(tx *sql.Tx) {
		var err error
		claimed, p, err = i.LookUp(t.Context(), i.in(tx), consumer, key)
		check(t, err, "look up")
	})
	return claimed, p
}

func expect[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s is %v, must be %v", what, got, want)
	}
}

func expectPending(t *testing.T, got *driver.Pending, want driver.Pending) {
	t.Helper()
	if got == nil {
		t.Fatalf("nothing is pending, must be %+v", want)
	}
	if age := time.Since(got.Since); age < -time.Minute || age > wait {
		t.Fatalf("pending since %v, which is %v ago", got.Since, age)
	}
	want.Since, want.Stored = got.Since, want.Stored || len(want.Message) > 0
	if fmt.Sprintf("%+v", *got) != fmt.Sprintf("%+v", want) {
		t.Fatalf("pending is %+v, must be %+v", *got, want)
	}
}

func testReleasePending(t *testing.T, i *inbox) {
	key := newID().String()
	expectClaimed(t, i.claim(t, "a", key), true)
	expectClaimed(t, i.claim(t, "b", key), true)
	for range 2 { // the second time there is no claim
		i.add(t, "a", driver.Pending{Key: key, State: driver.Started, Run: "run 1"}, 0)
		expect(t, "released", i.release(t, "a", key, "run 1"), true)
	}
	expectClaimed(t, i.claim(t, "b", key), false)
	expectClaimed(t, i.claim(t, "a", key), true)
}

func (i *inbox) release(t *testing.T, consumer, key, run string) bool {
	t.Helper()
	return alone(t, i, "release", func(tx bridge.Tx) (bool, error) { return i.ReleasePending(t.Context(), tx, consumer, key, run) })
}

func testAddPending(t *testing.T, i *inbox) {
	key := newID().String()
	expect(t, "added", i.add(t, "a", pending(driver.Started, key), 0), true)
	again := pending(driver.Ready, key)
	again.Run = "run 2"
	expect(t, "added again", i.add(t, "a", again, 0), false)
	_, p := i.lookUp(t, "a", key)
	expectPending(t, p, pending(driver.Started, key))

	// A refused add leaves the transaction usable.
	i.inTx(t, func(tx *sql.Tx) {
		added, err := i.AddPending(t.Context(), i.in(tx), "a", again, 0)
		check(t, err, "add")
		expect(t, "added once more", added, false)
		_, found, err := i.LookUp(t.Context(), i.in(tx), "a", key)
		check(t, err, "look up")
		expectPending(t, found, pending(driver.Started, key))
	})
}

func testAddPendingWaits(t *testing.T, i *inbox) {
	key := newID().String()
	first, second := begin(t, i.db), begin(t, i.db)
	added, err := i.AddPending(t.Context(), i.in(first), "a", pending(driver.Started, key), 0)
	check(t, err, "add")
	expect(t, "added", added, true)
	done := beside(func() (bool, error) {
		return i.AddPending(t.Context(), i.in(second), "a", pending(driver.Started, key), 0)
	})
	awaitWaiting(t, i.Harness, i.db, 1)
	check(t, first.Commit(), "commit")
	added, err = next(t, "the second add", done)
	check(t, err, "add")
	expect(t, "added by the second", added, false)
	check(t, second.Rollback(), "roll back")
}

func testLookUp(t *testing.T, i *inbox) {
	key := newID().String()
	claimed, p := i.lookUp(t, "a", key)
	expect(t, "an unknown key's claim", claimed, false)
	expect(t, "an unknown key's row", p, nil)

	expectClaimed(t, i.claim(t, "a", key), true)
	claimed, p = i.lookUp(t, "a", key)
	expect(t, "a done key's claim", claimed, true)
	expect(t, "a done key's row", p, nil)

	bare := pending(driver.Doubtful, key)
	bare.Message, bare.Attempts, bare.Error = nil, 7, "no answer"
	i.add(t, "a", bare, time.Hour)
	claimed, p = i.lookUp(t, "a", key)
	expect(t, "a pending key's claim", claimed, true)
	expectPending(t, p, bare)

	full := pending(driver.Failed, key+"'")
	full.Message = []byte("\x00\xff' \\ message")
	i.add(t, "a", full, -time.Hour)
	claimed, p = i.lookUp(t, "a", full.Key)
	expect(t, "a pending key's claim that was purged", claimed, false)
	expectPending(t, p, full)
}

// testLookUpAtOneMoment: while one transaction deletes row and claim, another must see both or
// neither: a claim alone would mean that the message is done.
func testLookUpAtOneMoment(t *testing.T, i *inbox) {
	if i.OneWriter {
		t.Skip("each read is of one moment here")
	}
	for _, between := range []bool{true, false} { // the two, or after both
		key := newID().String()
		expectClaimed(t, i.claim(t, "a", key), true)
		i.add(t, "a", driver.Pending{Key: key, State: driver.Started, Run: "run 1"}, time.Hour)
		tx := begin(t, i.db)
		var done <-chan reply[bool]
		in := &secondExec{Tx: i.in(tx)}
		if between {
			in.before = func() { done = i.lookUpBeside(t, key) }
		}
		_, err := i.ReleasePending(t.Context(), in, "a", key, "run 1")
		if !between {
			check(t, err, "release")
			done = i.lookUpBeside(t, key)
		}
		// If the two wait for each other the server ends one of them.
		if err == nil {
			check(t, tx.Commit(), "commit")
		} else {
			_ = tx.Rollback()
		}
		if done == nil {
			t.Fatalf("a release executed %d statements, must execute 2", in.n)
		}
		if seemsDone, err := next(t, "look up", done); err == nil && seemsDone {
			t.Fatal("a claim without a row counts as done")
		}
	}
}

// A secondExec calls before, if there is one, before its second Exec.
type secondExec struct {
	bridge.Tx
	before func()
	n      int
}

func (e *secondExec) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	if e.n++; e.n == 2 && e.before != nil {
		e.before()
	}
	return e.Tx.Exec(ctx, statement, args...)
}

// testLookUpWhileClaimed is the opposite: one transaction claims a key and makes its row.
func testLookUpWhileClaimed(t *testing.T, i *inbox) {
	if i.OneWriter {
		t.Skip("each read is of one moment here")
	}
	key := newID().String()
	tx := begin(t, i.db)
	expectClaimed(t, i.claimIn(t, tx, "a", key), true)
	_, err := i.AddPending(t.Context(), i.in(tx), "a", pending(driver.Started, key), time.Hour)
	check(t, err, "add")
	done := i.lookUpBeside(t, key)
	check(t, tx.Commit(), "commit")
	if seemsDone, err := next(t, "look up", done); err != nil || seemsDone {
		t.Fatalf("a claim without a row counts as done: %t, %v", seemsDone, err)
	}
}

// lookUpBeside looks a key up in a goroutine, and returns when the look-up waits for a lock, or
// need not. The reply is whether the key is claimed and has no row.
func (i *inbox) lookUpBeside(t *testing.T, key string) <-chan reply[bool] {
	t.Helper()
	reader := begin(t, i.db)
	done := beside(func() (bool, error) {
		defer func() { _ = reader.Rollback() }()
		claimed, p, err := i.LookUp(t.Context(), i.in(reader), "a", key)
		return claimed && p == nil, err
	})
	eventually(t, "the look-up waits for a lock, or is done", func() bool {
		var waiting int
		check(t, i.db.QueryRowContext(t.Context(), i.Waiting).Scan(&waiting), "count the waiting sessions")
		return waiting > 0 || len(done) > 0
	})
	return done
}

func testRun(t *testing.T, i *inbox) {
	key := newID().String()
	i.add(t, "a", pending(driver.Started, key), time.Hour)
	next := driver.Pending{Key: key, State: driver.Doubtful, Run: "run 2", Attempts: 3, Error: "why"}
	i.inTx(t, func(tx *sql.Tx) {
		changed, err := i.ChangePending(t.Context(), i.in(tx), "a", "run 0", next, 0)
		check(t, err, "change")
		expect(t, "changed by another", changed, false)
		removed, err := i.RemovePending(t.Context(), i.in(tx), "a", key, "run 0")
		check(t, err, "remove")
		expect(t, "removed by another", removed, false)
		changed, err = i.ChangePending(t.Context(), i.in(tx), "a", "run 1", next, 0)
		check(t, err, "change")
		expect(t, "changed", changed, true)
	})
	want := next
	want.Message = pending("", key).Message // stays
	_, p := i.lookUp(t, "a", key)
	expectPending(t, p, want)
	i.inTx(t, func(tx *sql.Tx) {
		removed, err := i.RemovePending(t.Context(), i.in(tx), "a", key, "run 1")
		check(t, err, "remove")
		expect(t, "removed by its former owner", removed, false)
		next.Message = []byte("other")
		changed, err := i.ChangePending(t.Context(), i.in(tx), "a", "run 2", next, 0) // to the same run
		check(t, err, "change")
		expect(t, "changed", changed, true)
	})
	_, p = i.lookUp(t, "a", key)
	expectPending(t, p, next)
	i.inTx(t, func(tx *sql.Tx) {
		// An unchanged row counts as changed too.
		changed, err := i.ChangePending(t.Context(), i.in(tx), "a", "run 2", next, -time.Hour)
		check(t, err, "change")
		expect(t, "changed to the same", changed, true)
		removed, err := i.RemovePending(t.Context(), i.in(tx), "a", key, "run 2")
		check(t, err, "remove")
		expect(t, "removed", removed, true)
	})
	if _, p := i.lookUp(t, "a", key); p != nil {
		t.Fatalf("after its removal %+v is pending", p)
	}
}

func testAttachMessage(t *testing.T, i *inbox) {
	key := newID().String()
	bare := driver.Pending{Key: key, State: driver.Doubtful, Run: "run 1", Error: "why"}
	i.add(t, "a", bare, time.Hour)
	for _, c := range []struct {
		run     string
		message string
		want    bool
	}{{"run 0", "x", false}, {"run 1", "first", true}, {"run 1", "second", false}} {
		expect(t, c.message+" attached", alone(t, i, "attach", func(tx bridge.Tx) (bool, error) {
			return i.AttachMessage(t.Context(), tx, "a", key, c.run, []byte(c.message))
		}), c.want)
	}
	bare.Message = []byte("first")
	_, p := i.lookUp(t, "a", key)
	expectPending(t, p, bare)
}

func testReleaseOnlyBare(t *testing.T, i *inbox) {
	bare, full := newID().String(), newID().String()
	for _, key := range []string{bare, full} {
		expectClaimed(t, i.claim(t, "a", key), true)
	}
	i.add(t, "a", driver.Pending{Key: bare, State: driver.Started, Run: "run 1"}, 0)
	i.add(t, "a", pending(driver.Started, full), 0)
	for _, c := range []struct {
		key, run          string
		released, claimed bool
	}{{bare, "run 0", false, true}, {bare, "run 1", true, false}, {bare, "run 1", false, false}, {full, "run 1", false, true}} {
		expect(t, "released", i.release(t, "a", c.key, c.run), c.released)
		claimed, _ := i.lookUp(t, "a", c.key)
		expect(t, "claimed afterwards", claimed, c.claimed)
	}
}

func testPendingError(t *testing.T, i *inbox) {
	for text, want := range map[string]string{
		"":                           "",
		"Zahl üñ 😀 ' \\ \n":          "Zahl üñ 😀 ' \\ \n",
		"a\x00b\xffc":                "ab\uFFFDc",
		strings.Repeat("x", 5000):    strings.Repeat("x", 1000),
		strings.Repeat("😀", 1001):    strings.Repeat("😀", 1000),
		strings.Repeat("ä", 1000):    strings.Repeat("ä", 1000),
		strings.Repeat("😀", 3) + " ": strings.Repeat("😀", 3) + " ",
	} {
		p := pending(driver.Failed, newID().String())
		p.Error = text
		i.add(t, "a", p, 0)
		p.Error = want
		_, found := i.lookUp(t, "a", p.Key)
		expectPending(t, found, p)
	}
}
