package ledgertest

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// tick is the coarsest resolution of recorded_at.
const tick = time.Second

// runCarried tests every promise of Due, Claim and Touch, and of Record for entries with messages,
// or, on an own table, that they are denied. Each test begins without rows.
func runCarried(t *testing.T, d *database) {
	if f := d.ledger.Features(); f.Carries == f.KeepsRows || f.KeepsRows != (d.Insert != nil) {
		t.Fatalf("the features are %+v", f)
	}
	if d.Insert != nil {
		testOwnTableCarriesNothing(t, d)
		return
	}
	d.empty(t)
	run(t, d.Harness, d, []test[*database]{
		{"a row returns its message byte by byte", testCarriedBytes},
		{"many carried messages in one transaction are all kept", testCarryMany},
		{"plain and carried entries go into one record", testCarryMixed},
		{"a carried message with an ID that is recorded already is refused", testCarryDuplicate},
		{"an unpublished message is due at once", testDueUnpublished},
		{"a published message is due after its grace", testDuePublished},
		{"a delayed message is due at its time, and no copy of it is published before", testDelayed},
		{"cancel removes a row as long as no copy of its message can exist", testCancel},
		{"due rows are listed by stage time, up to the limit, and after a position", testDueInOrder},
		{"pages give every due row once, also rows of one stage time", testDuePages},
		{"a claim and a touch move the stage time by the age of the row, within bounds", testStageTimes},
		{"a claim of a row that was touched, claimed or forgotten returns nothing", testClaimOutdated},
		{"a claimed row is committed until it is forgotten", testClaimedIsCommitted},
		{"a touch of a row without a message, or of no row, changes nothing", testTouchPlain},
	}, []test[*database]{
		{"a rollback removes carried messages", testCarryRollback},
		{"a rollback to a savepoint removes the messages that were carried after it", testCarrySavepoint},
		{"an uncommitted carried message is not due, and no list or touch waits for it", testDueOpen},
		{"concurrent claims get each message once", testClaimTwo},
		{"concurrent claims and cancels get each row once", testCancelRaced},
		{"an uncommitted cancel hides its row from claims, and the row is back when its connection ends", testCancelOpen},
		{"a cancel of a missing row blocks no record", testCancelGone},
		{"claim and touch skip a row that another session has locked, without a wait", testClaimLocked},
		{"a carried row of any age is no orphan", testSweepCarried},
		{"concurrent claims, touches and forgets of the same rows do not fail", testCarriedStress},
	}, func(t *testing.T) {
		d.expectIdle(t)
		d.empty(t)
	})
}

func testOwnTableCarriesNothing(t *testing.T, d *database) {
	tx := begin(t, d.sender.DB())
	expectDenied(t, "record a carried message", d.sender.Record(t.Context(), d.in(tx), newCarried(1)))
	check(t, tx.Rollback(), "roll back")
	_, _, err := d.ledger.Due(t.Context(), driver.DueRow{}, 1)
	expectDenied(t, "due", err)
	_, err = d.ledger.Claim(t.Context(), []driver.DueRow{{ID: newID()}})
	expectDenied(t, "claim", err)
	tx = begin(t, d.sender.DB())
	_, err = d.sender.Cancel(t.Context(), d.in(tx), newID())
	expectDenied(t, "cancel", err)
	check(t, tx.Rollback(), "roll back")
	expectDenied(t, "touch", d.ledger.Touch(t.Context(), newIDs(1)))
}

// newCarried returns entries for published messages.
func newCarried(n int) []driver.Entry {
	entries := driver.Plain(newIDs(n)...)
	for i := range entries {
		entries[i].Message = []byte("message " + entries[i].ID.String())
	}
	return entries
}

// newUnpublished returns entries that are due at once.
func newUnpublished(n int) []driver.Entry {
	entries := newCarried(n)
	for i := range entries {
		entries[i].Unpublished = true
	}
	return entries
}

func idsOfEntries(entries []driver.Entry) []uuid.UUID {
	ids := make([]uuid.UUID, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
	}
	return ids
}

func idsOfDue(rows []driver.DueRow) []uuid.UUID {
	ids := make([]uuid.UUID, len(rows))
	for i, r := range rows {
		ids[i] = r.ID
	}
	return ids
}

func (d *database) recordEntries(t *testing.T, tx bridge.Tx, entries []driver.Entry) {
	t.Helper()
	check(t, d.sender.Record(t.Context(), tx, entries), "record")
}

// carry records entries in a transaction, and commits it.
func (d *database) carry(t *testing.T, entries ...driver.Entry) {
	t.Helper()
	tx := begin(t, d.sender.DB())
	d.recordEntries(t, d.in(tx), entries)
	check(t, tx.Commit(), "commit")
}

// unpublished commits n messages that are due at once, and returns their entries and rows.
func (d *database) unpublished(t *testing.T, n int) ([]driver.Entry, []driver.DueRow) {
	t.Helper()
	entries := newUnpublished(n)
	d.carry(t, entries...)
	return entries, d.expectDue(t, idsOfEntries(entries)...)
}

// due lists at most a thousand due rows.
func (d *database) due(t *testing.T) ([]driver.DueRow, time.Time) {
	t.Helper()
	rows, now, err := d.ledger.Due(bounded(t), driver.DueRow{}, 1000)
	check(t, err, "list due rows")
	return rows, now
}

// expectDue fails unless exactly the rows of want are due, and returns these.
func (d *database) expectDue(t *testing.T, want ...uuid.UUID) []driver.DueRow {
	t.Helper()
	rows, _ := d.due(t)
	expectIDs(t, "are due", idsOfDue(rows), want)
	return rows
}

// expectIDs fails unless got and want are equal, in any order.
func expectIDs(t *testing.T, what string, got, want []uuid.UUID) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d rows %s, must be %d", len(got), what, len(want))
	}
	for _, id := range want {
		if !contains(got, id) {
			t.Fatalf("%s is not among the rows that %s", id, what)
		}
	}
}

func (d *database) claim(t *testing.T, rows []driver.DueRow) []driver.Carried {
	t.Helper()
	messages, err := d.ledger.Claim(bounded(t), rows)
	check(t, err, "claim")
	return messages
}

// expectMessages fails unless messages are the messages of entries.
func expectMessages(t *testing.T, messages []driver.Carried, entries ...driver.Entry) {
	t.Helper()
	byID := make(map[uuid.UUID][]byte)
	for _, m := range messages {
		byID[m.ID] = m.Message
	}
	if len(messages) != len(entries) || len(byID) != len(entries) {
		t.Fatalf("%d messages of %d IDs are claimed, must be %d", len(messages), len(byID), len(entries))
	}
	for _, e := range entries {
		if message, found := byID[e.ID]; !found || !bytes.Equal(message, e.Message) {
			t.Fatalf("message %s: found %t, %d bytes, must be %d", e.ID, found, len(message), len(e.Message))
		}
	}
}

// makeOlder makes the rows of ids older; without ids, all rows.
func (d *database) makeOlder(t *testing.T, ids ...uuid.UUID) {
	t.Helper()
	if len(ids) == 0 {
		d.age(t)
	}
	for _, id := range ids {
		_, err := d.sender.DB().ExecContext(t.Context(), d.Older+" WHERE id = "+d.Literal(id))
		check(t, err, "make a row older")
	}
}

// row returns the row of a carried message, due or not. To find it, row makes the row older; the result
// has the earlier times.
func (d *database) row(t *testing.T, id uuid.UUID) driver.DueRow {
	t.Helper()
	d.makeOlder(t, id)
	rows, _ := d.due(t)
	for _, r := range rows {
		if r.ID == id {
			r.RecordedAt, r.StageAt = r.RecordedAt.Add(older), r.StageAt.Add(older)
			return r
		}
	}
	t.Fatalf("%s is not due after %v", id, older)
	panic("unreachable")
}

// between fails unless at is between two times, give or take a tick.
func between(t *testing.T, what string, at, from, to time.Time) {
	t.Helper()
	if at.Before(from.Add(-tick)) || at.After(to.Add(tick)) {
		t.Errorf("%s is %v, must be between %v and %v", what, at, from, to)
	}
}

func testCarriedBytes(t *testing.T, d *database) {
	entries := newUnpublished(5)
	entries[1].Message = []byte{0}
	entries[2].Message = make([]byte, 256)
	for i := range entries[2].Message {
		entries[2].Message[i] = byte(i)
	}
	entries[3].Message = make([]byte, 1<<20)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(entries[3].Message)
	entries[4].Message = []byte("'\\\"$1?@p1:x\x00\\x41%s")
	d.carry(t, entries...)
	rows := d.expectDue(t, idsOfEntries(entries)...)
	for _, r := range rows {
		i := slices.Index(idsOfEntries(entries), r.ID)
		if r.Bytes != int64(len(entries[i].Message)) {
			t.Errorf("%d bytes, must be %d", r.Bytes, len(entries[i].Message))
		}
	}
	expectMessages(t, d.claim(t, rows), entries...)
	d.expectDue(t)

	// Most transactions have one message.
	for _, e := range append(entries, newCarried(2)...) {
		e.ID = newID()
		d.carry(t, e)
		d.makeOlder(t, e.ID)
		expectMessages(t, d.claim(t, d.expectDue(t, e.ID)), e)
	}
}

func testCarryMany(t *testing.T, d *database) {
	for _, entries := range [][]driver.Entry{newUnpublished(1100), newCarried(1100)} {
		d.carry(t, entries...)
		d.makeOlder(t)
		var claimed []driver.Carried
		for {
			rows, _, err := d.ledger.Due(t.Context(), driver.DueRow{}, 500)
			check(t, err, "list due rows")
			if len(rows) == 0 {
				break
			}
			claimed = append(claimed, d.claim(t, rows)...)
		}
		expectMessages(t, claimed, entries...)
		d.empty(t)
	}
}

func testCarryMixed(t *testing.T, d *database) {
	unpublished, published, plain := newUnpublished(2), newCarried(2), newIDs(2)
	entries := slices.Concat(driver.Plain(plain[0]), unpublished[:1], published, driver.Plain(plain[1]), unpublished[1:])
	d.carry(t, entries...)
	all := idsOfEntries(entries)
	d.expectCommitted(t, all, all...)
	d.makeOlder(t)
	carried := slices.Concat(unpublished, published)
	rows := d.expectDue(t, idsOfEntries(carried)...)
	expectMessages(t, d.claim(t, rows), carried...)
	d.forget(t, all...)
	d.expectCommitted(t, all)
}

func testCarryRollback(t *testing.T, d *database) {
	entries := slices.Concat(newUnpublished(2), newCarried(2))
	tx := begin(t, d.sender.DB())
	d.recordEntries(t, d.in(tx), entries)
	check(t, tx.Rollback(), "roll back")
	d.expectDue(t)
	d.expectCommitted(t, idsOfEntries(entries))
	d.expectSettled(t, entries[0].ID, driver.RolledBack)
}

func testCarrySavepoint(t *testing.T, d *database) {
	outside, inside, after := newUnpublished(2), newUnpublished(2), newUnpublished(2)
	tx := begin(t, d.sender.DB())
	exec := func(statement string) {
		_, err := tx.ExecContext(t.Context(), statement)
		check(t, err, statement)
	}
	d.recordEntries(t, d.in(tx), outside)
	exec(d.Savepoint)
	d.recordEntries(t, d.in(tx), inside)
	exec(d.RollbackTo)
	d.recordEntries(t, d.in(tx), after)
	check(t, tx.Commit(), "commit")
	both := slices.Concat(outside, after)
	expectMessages(t, d.claim(t, d.expectDue(t, idsOfEntries(both)...)), both...)
}

func testCarryDuplicate(t *testing.T, d *database) {
	plain, carried := newID(), newUnpublished(1)[0]
	d.carry(t, driver.Entry{ID: plain}, carried)
	twice := newCarried(1)[0]
	again := carried
	again.Message = []byte("another")
	for name, entries := range map[string][]driver.Entry{
		"a carried duplicate of a carried message": {again},
		"a carried duplicate of a plain message":   {{ID: plain, Message: []byte("x")}},
		"a plain duplicate of a carried message":   driver.Plain(carried.ID),
		"a duplicate among others":                 slices.Concat(newCarried(2), []driver.Entry{again}),
		"a duplicate within one call":              {twice, twice},
	} {
		tx := begin(t, d.sender.DB())
		if err := d.sender.Record(t.Context(), d.in(tx), entries); !errors.Is(err, bridge.ErrDuplicateID) {
			t.Errorf("record %s: %v, must be %v", name, err, bridge.ErrDuplicateID)
		}
		check(t, tx.Rollback(), "roll back")
	}
	expectMessages(t, d.claim(t, d.expectDue(t, carried.ID)), carried)
}

func testDueUnpublished(t *testing.T, d *database) {
	_, before := d.due(t)
	entries := newUnpublished(3)
	d.carry(t, entries[:1]...)
	d.carry(t, entries[1:]...)
	rows, now := d.due(t)
	expectIDs(t, "are due", idsOfDue(rows), idsOfEntries(entries))
	for _, r := range rows {
		between(t, "recorded_at", r.RecordedAt, before, now)
		if !r.StageAt.Equal(r.RecordedAt) || !r.Unpublished() {
			t.Errorf("recorded at %v, to be staged at %v, unpublished %t", r.RecordedAt, r.StageAt, r.Unpublished())
		}
	}
	d.claim(t, rows)
	for _, e := range entries {
		if r := d.row(t, e.ID); r.Unpublished() {
			t.Errorf("after a claim a message is still unpublished: %+v", r)
		}
	}
}

func testDuePublished(t *testing.T, d *database) {
	_, before := d.due(t)
	one, two := newCarried(1), newCarried(2)
	d.carry(t, one...)
	d.carry(t, two...)
	rows, now := d.due(t)
	for _, r := range rows { // on a slow machine they are due already
		if r.StageAt.After(now) {
			t.Errorf("at %v a row with the stage time %v is due", now, r.StageAt)
		}
	}
	for _, id := range idsOfEntries(slices.Concat(one, two)) {
		r := d.row(t, id)
		between(t, "recorded_at", r.RecordedAt, before, now)
		if r.Unpublished() {
			t.Errorf("a published message counts as unpublished: %+v", r)
		}
		grace := r.StageAt.Sub(r.RecordedAt)
		if grace < driver.PublishedGrace || grace > driver.PublishedGrace+tick {
			t.Errorf("staged %v after the record, must be %v", grace, driver.PublishedGrace)
		}
		if r.StageAt.Before(before.Add(driver.PublishedGrace)) {
			t.Errorf("a row that was recorded after %v is to be staged at %v", before, r.StageAt)
		}
	}
	d.empty(t)
	d.carry(t, one...)
	eventually(t, "a published message is due", func() bool {
		rows, now := d.due(t)
		return len(rows) == 1 && !rows[0].StageAt.After(now)
	})
}

func testDelayed(t *testing.T, d *database) {
	_, before := d.due(t)
	soon, later := before.Add(1500*time.Millisecond), before.Add(time.Hour)
	entries := newCarried(6)
	for i, at := range []time.Time{before.Add(-time.Hour), soon, later, later, later.Add(time.Nanosecond), later.In(time.FixedZone("", 3600))} {
		entries[i].NotBefore = at
	}
	plain, published := newID(), newCarried(1)
	d.carry(t, slices.Concat(entries, driver.Plain(plain), published)...)
	d.forget(t, published[0].ID)
	past := d.row(t, entries[0].ID)
	_, now := d.due(t)
	between(t, "the stage time of a message that was delayed to the past", past.StageAt, before, now)

	var due driver.DueRow
	eventually(t, "a delayed message is due", func() bool {
		rows, now := d.due(t)
		for _, r := range rows {
			if now.Before(r.StageAt) {
				t.Errorf("at %v a row with the stage time %v is due", now, r.StageAt)
			}
			if r.ID == entries[1].ID {
				due = r
			}
		}
		return due.ID == entries[1].ID
	})
	d.expectDue(t, entries[0].ID, entries[1].ID)
	for i, e := range entries[1:] {
		r := due
		if i > 0 {
			r = d.row(t, e.ID)
		}
		if late := r.StageAt.Sub(e.NotBefore); late < 0 || late > time.Millisecond || !r.Unpublished() || r.RecordedAt.Sub(r.StageAt) > tick {
			t.Errorf("message %d, delayed to %v, is to be staged at %v, recorded at %v", i+1, e.NotBefore, r.StageAt, r.RecordedAt)
		}
	}

	// A claim moves the stage time by the time since the message was first due.
	expectMessages(t, d.claim(t, []driver.DueRow{due}), entries[1])
	_, now = d.due(t)
	if r := d.row(t, due.ID); r.Unpublished() || r.StageAt.After(now.Add(max(driver.StageAgainAfter, now.Sub(soon))+tick)) {
		t.Errorf("after a claim at %v the stage time is %v, recorded at %v", now, r.StageAt, r.RecordedAt)
	}
	rows := d.expectDue(t, idsOfEntries(entries)...)
	expectMessages(t, d.claim(t, rows), entries...)
	d.age(t)
	d.sweep(t, plain)
	d.expectCommitted(t, idsOfEntries(entries), idsOfEntries(entries)...)
}

// cancel calls Cancel in a transaction that commits.
func (d *database) cancel(t *testing.T, id uuid.UUID) (done bool) {
	t.Helper()
	check(t, within(t.Context(), d.sender.DB(), func(tx *sql.Tx) (err error) {
		done, err = d.sender.Cancel(t.Context(), d.in(tx), id)
		return err
	}), "cancel")
	return done
}

func testCancel(t *testing.T, d *database) {
	_, now := d.due(t)
	entries := newUnpublished(7)
	waiting, due, published, claimed, touched, twice, own := &entries[0], &entries[1], &entries[2], &entries[3], &entries[4], &entries[5], entries[6]
	for _, e := range []*driver.Entry{waiting, twice} {
		e.NotBefore = now.Add(time.Hour + time.Microsecond)
	}
	published.Unpublished = false
	plain := newID()
	d.carry(t, append(entries[:6:6], driver.Entry{ID: plain})...)
	rows, _ := d.due(t)
	rows = slices.DeleteFunc(rows, func(r driver.DueRow) bool { return r.ID != claimed.ID })
	expectMessages(t, d.claim(t, rows), *claimed)
	check(t, d.ledger.Touch(bounded(t), []uuid.UUID{touched.ID}), "touch")
	d.makeOlder(t, claimed.ID, touched.ID)

	tx := begin(t, d.sender.DB())
	for range 2 {
		for id, want := range map[uuid.UUID]bool{waiting.ID: true, due.ID: true} {
			if done, err := d.sender.Cancel(t.Context(), d.in(tx), id); done != want || err != nil {
				t.Fatalf("cancel returns %t, %v", done, err)
			}
		}
		check(t, tx.Rollback(), "roll back")
		tx = begin(t, d.sender.DB())
	}
	check(t, tx.Rollback(), "roll back")

	for name, x := range map[string]struct {
		id   uuid.UUID
		want bool
	}{
		"waiting": {waiting.ID, true}, "due": {due.ID, true}, "published": {published.ID, false}, "claimed": {claimed.ID, false},
		"touched": {touched.ID, false}, "of a plain row": {plain, false}, "missing": {newID(), false},
	} {
		if done := d.cancel(t, x.id); done != x.want {
			t.Errorf("cancel of a message that is %s returns %t, must return %t", name, done, x.want)
		}
	}
	if first, second := d.cancel(t, twice.ID), d.cancel(t, twice.ID); !first || second {
		t.Errorf("cancel returns %t, then %t", first, second)
	}
	check(t, within(t.Context(), d.sender.DB(), func(tx *sql.Tx) error {
		d.recordEntries(t, d.in(tx), []driver.Entry{own})
		done, err := d.sender.Cancel(t.Context(), d.in(tx), own.ID)
		if !done {
			t.Error("cancel does not see a row of its own transaction")
		}
		return err
	}), "record and cancel")
	all := append(idsOfEntries(entries), plain)
	d.expectCommitted(t, all, published.ID, claimed.ID, touched.ID, plain)
}

func testCancelRaced(t *testing.T, d *database) {
	entries, rows := d.unpublished(t, 60)
	var work sync.WaitGroup
	var lock sync.Mutex
	claimed, cancelled := make(map[uuid.UUID]bool), make(map[uuid.UUID]bool)
	for range 2 {
		work.Go(func() {
			mine := slices.Clone(rows)
			rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
			for some := range slices.Chunk(mine, 5) {
				messages, err := d.ledger.Claim(t.Context(), some)
				if err != nil {
					t.Errorf("claim: %v", err)
				}
				lock.Lock()
				for _, m := range messages {
					claimed[m.ID] = true
				}
				lock.Unlock()
			}
		})
		work.Go(func() {
			mine := slices.Clone(entries)
			rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
			for _, e := range mine {
				done, err := cancelIn(t.Context(), d.sender.DB(), d.Conflict, func(tx *sql.Tx) (bool, error) {
					return d.sender.Cancel(t.Context(), d.in(tx), e.ID)
				})
				if err != nil {
					t.Errorf("cancel: %v", err)
				}
				lock.Lock()
				if done && cancelled[e.ID] {
					t.Errorf("%s is cancelled twice", e.ID)
				}
				cancelled[e.ID] = cancelled[e.ID] || done
				lock.Unlock()
			}
		})
	}
	work.Wait()
	for _, e := range entries {
		if claimed[e.ID] == cancelled[e.ID] {
			t.Errorf("%s: claimed %t, cancelled %t", e.ID, claimed[e.ID], cancelled[e.ID])
		}
	}
	t.Logf("%d of %d are claimed", len(claimed), len(entries))
}

func testCancelOpen(t *testing.T, d *database) {
	d.skipWithOneWriter(t)
	entries, rows := d.unpublished(t, 2)
	tx := begin(t, d.sender.DB())
	done, err := d.sender.Cancel(t.Context(), d.in(tx), entries[0].ID)
	if check(t, err, "cancel"); !done {
		t.Fatal("cancel returns false")
	}
	d.promptly(t, func() { expectMessages(t, d.claim(t, rows), entries[1]) })
	if d.Kill == nil {
		check(t, tx.Rollback(), "roll back")
	} else {
		check(t, d.Kill(t.Context(), d.ledger.DB(), tx), "kill")
	}
	var back []driver.Carried
	eventually(t, "the row is back", func() bool { // a killed session may hold the lock for a moment
		rows, _ := d.due(t)
		if len(rows) > 0 {
			back = d.claim(t, rows)
		}
		return len(back) > 0
	})
	expectMessages(t, back, entries[0])
}

// testCancelGone: each of two transactions cancels a delivered message, and sends another one.
func testCancelGone(t *testing.T, d *database) {
	d.skipWithOneWriter(t)
	first, second := begin(t, d.sender.DB()), begin(t, d.sender.DB())
	for _, tx := range []*sql.Tx{first, second} {
		if done, err := d.sender.Cancel(t.Context(), d.in(tx), newID()); done || err != nil {
			t.Fatalf("cancel returns %t, %v", done, err)
		}
	}
	entries := newUnpublished(3)
	d.promptly(t, func() {
		d.carry(t, entries[0])
		d.recordEntries(t, d.in(first), entries[1:2])
		d.recordEntries(t, d.in(second), entries[2:])
	})
	check(t, first.Commit(), "commit")
	check(t, second.Commit(), "commit")
	d.expectDue(t, idsOfEntries(entries)...)
}

func testDueInOrder(t *testing.T, d *database) {
	var ids []uuid.UUID // the earliest first
	for i := range 4 {
		entry := newCarried(1)[0]
		entry.Unpublished = i%2 == 0
		d.carry(t, entry)
		d.makeOlder(t)
		ids = append(ids, entry.ID)
	}
	young := newUnpublished(1)[0]
	d.carry(t, young)
	ids = append(ids, young.ID)
	rows := d.expectDue(t, ids...)
	from := func(at time.Time) driver.DueRow { return driver.DueRow{StageAt: at} }
	for _, x := range []struct {
		after driver.DueRow
		limit int
		want  []uuid.UUID
	}{
		{driver.DueRow{}, 1000, ids}, {driver.DueRow{}, 5, ids}, {driver.DueRow{}, 3, ids[:3]}, {driver.DueRow{}, 1, ids[:1]},
		{rows[0], 1000, ids[1:]}, {rows[1], 2, ids[2:4]}, {rows[4], 1000, nil},
		{from(rows[0].StageAt), 1000, ids}, {from(rows[3].StageAt), 1, ids[3:4]}, {from(rows[3].StageAt.Add(tick)), 1000, ids[4:]},
		{from(rows[4].StageAt.Add(older)), 1000, nil},
	} {
		rows, now, err := d.ledger.Due(t.Context(), x.after, x.limit)
		check(t, err, "list due rows")
		if !slices.Equal(idsOfDue(rows), x.want) || now.IsZero() {
			t.Errorf("after %+v up to %d are due %v at %v, must be %v", x.after, x.limit, idsOfDue(rows), now, x.want)
		}
	}
}

// testDuePages: rows of one transaction, or of one Touch, may have the same stage time.
func testDuePages(t *testing.T, d *database) {
	entries := slices.Concat(newUnpublished(1200), newCarried(30))
	d.carry(t, entries...)
	ids := idsOfEntries(entries)
	for range 2 {
		d.makeOlder(t)
		for _, limit := range []int{500, 70} {
			var all []driver.DueRow
			var last driver.DueRow
			for {
				page, _, err := d.ledger.Due(bounded(t), last, limit)
				check(t, err, "list due rows")
				all = append(all, page...)
				if len(page) < limit {
					break
				}
				last = page[limit-1]
			}
			expectIDs(t, "are due", idsOfDue(all), ids)
			if !slices.IsSortedFunc(all, func(a, b driver.DueRow) int { return a.StageAt.Compare(b.StageAt) }) {
				t.Error("they are not in the order of their stage times")
			}
		}
		check(t, d.ledger.Touch(bounded(t), ids), "touch")
	}
}

// testStageTimes: the times are the database's, which may differ from this process's.
func testStageTimes(t *testing.T, d *database) {
	claim := func(r driver.DueRow) {
		if n := len(d.claim(t, []driver.DueRow{r})); n != 1 {
			t.Errorf("%d messages are claimed, must be 1", n)
		}
	}
	touch := func(r driver.DueRow) { check(t, d.ledger.Touch(bounded(t), []uuid.UUID{r.ID}), "touch") }
	for name, move := range map[string]func(driver.DueRow){"claim": claim, "touch": touch} {
		for _, old := range []bool{false, true} {
			entry := newUnpublished(1)[0]
			d.carry(t, entry)
			later := driver.StageAgainAfter
			if old {
				d.makeOlder(t, entry.ID)
				later = driver.StageAgainWithin
			}
			row := d.expectDue(t, entry.ID)[0]
			_, before := d.due(t)
			move(row)
			_, after := d.due(t)
			d.expectDue(t)
			if age := after.Sub(row.RecordedAt); !old && age > later {
				later = age // on a slow machine
			}
			moved := d.row(t, entry.ID)
			between(t, "the stage time after a "+name, moved.StageAt, before.Add(later), after.Add(later))
			if !moved.RecordedAt.Equal(row.RecordedAt) {
				t.Errorf("recorded_at was %v, is %v after a %s", row.RecordedAt, moved.RecordedAt, name)
			}
			d.forget(t, entry.ID)
		}
	}
}

func testClaimOutdated(t *testing.T, d *database) {
	entries, rows := d.unpublished(t, 6)
	slices.SortFunc(rows, func(a, b driver.DueRow) int { return bytes.Compare(a.ID[:], b.ID[:]) }) // in the order of the entries
	check(t, d.ledger.Touch(t.Context(), idsOfEntries(entries[0:2])), "touch")
	expectMessages(t, d.claim(t, rows[2:4]), entries[2:4]...)
	d.forget(t, entries[4].ID)
	expectMessages(t, d.claim(t, rows), entries[5])
	expectMessages(t, d.claim(t, rows))
	missing := driver.DueRow{ID: newID(), RecordedAt: rows[0].RecordedAt, StageAt: rows[0].StageAt}
	expectMessages(t, d.claim(t, []driver.DueRow{missing}))
	expectMessages(t, d.claim(t, nil))

	// A row can be claimed again when its new stage time has come.
	d.makeOlder(t)
	left := slices.Concat(entries[:4], entries[5:])
	expectMessages(t, d.claim(t, d.expectDue(t, idsOfEntries(left)...)), left...)
}

func testClaimedIsCommitted(t *testing.T, d *database) {
	entries, rows := d.unpublished(t, 2)
	ids := idsOfEntries(entries)
	d.claim(t, rows)
	d.expectCommitted(t, ids, ids...)
	recent, _, err := d.ledger.Recent(t.Context(), ids, oldAge)
	check(t, err, "look up")
	expectIDs(t, "are recent", recent, ids)
	for _, id := range ids {
		d.expectSettled(t, id, driver.Committed)
	}
	d.forget(t, ids...)
	d.expectCommitted(t, ids)
	d.expectSettled(t, ids[0], driver.RolledBack)
	d.makeOlder(t)
	d.expectDue(t)
}

func testTouchPlain(t *testing.T, d *database) {
	plain := newIDs(2)
	carried, _ := d.unpublished(t, 1)
	d.carry(t, driver.Plain(plain...)...)
	check(t, d.ledger.Touch(bounded(t), nil), "touch nothing")
	check(t, d.ledger.Touch(bounded(t), append(newIDs(1), plain...)), "touch rows without messages")
	d.expectDue(t, carried[0].ID)
	check(t, d.ledger.Touch(bounded(t), append(idsOfEntries(carried), plain...)), "touch")
	d.expectDue(t)
	d.makeOlder(t)
	d.expectDue(t, carried[0].ID)
	d.sweep(t, plain...)

	many := newUnpublished(1100)
	d.carry(t, many...)
	check(t, d.ledger.Touch(bounded(t), idsOfEntries(append(many, carried...))), "touch")
	d.expectDue(t)
}

func testDueOpen(t *testing.T, d *database) {
	before, _ := d.unpublished(t, 1)
	open := newUnpublished(2)
	tx := begin(t, d.sender.DB())
	d.recordEntries(t, d.in(tx), open)
	d.promptly(t, func() {
		d.expectDue(t, before[0].ID)
		check(t, d.ledger.Touch(bounded(t), idsOfEntries(open)), "touch")
	})
	check(t, tx.Commit(), "commit")
	d.expectDue(t, idsOfEntries(append(open, before...))...)
}

func testClaimTwo(t *testing.T, d *database) {
	entries, rows := d.unpublished(t, 50)
	var claims sync.WaitGroup
	var lock sync.Mutex
	var claimed []driver.Carried
	for range 3 {
		for _, ledger := range []driver.Ledger{d.ledger, d.sender} {
			claims.Go(func() {
				mine := slices.Clone(rows)
				rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
				messages, err := ledger.Claim(t.Context(), mine)
				if err != nil {
					t.Errorf("claim: %v", err)
				}
				lock.Lock()
				defer lock.Unlock()
				claimed = append(claimed, messages...)
			})
		}
	}
	claims.Wait()
	expectMessages(t, claimed, entries...)
}

func testClaimLocked(t *testing.T, d *database) {
	entries, rows := d.unpublished(t, 4)
	slices.SortFunc(rows, func(a, b driver.DueRow) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	tx := d.lockedRow(t, entries[1].ID)
	free := slices.Concat(entries[:1], entries[2:])
	if d.OneWriter { // a writer has locked all rows
		free = nil
	}
	d.promptly(t, func() {
		check(t, d.ledger.Touch(bounded(t), []uuid.UUID{entries[1].ID}), "touch")
		expectMessages(t, d.claim(t, rows), free...)
		check(t, d.ledger.Touch(bounded(t), idsOfEntries(entries)), "touch")
	})
	check(t, tx.Rollback(), "roll back")
	left := entries[1:2]
	if d.OneWriter {
		left = entries
	}
	expectMessages(t, d.claim(t, rows), left...)

	tx = d.lockedRow(t, entries[1].ID)
	check(t, tx.Commit(), "commit")
	d.makeOlder(t)
	rest := slices.Concat(entries[:1], entries[2:])
	expectMessages(t, d.claim(t, d.expectDue(t, idsOfEntries(rest)...)), rest...)
}

func testSweepCarried(t *testing.T, d *database) {
	carried, plain := slices.Concat(newUnpublished(2), newCarried(2)), newID()
	d.carry(t, append(carried, driver.Entry{ID: plain})...)
	d.makeOlder(t)
	d.expectListed(t, plain)
	d.sweep(t, plain)
	rows := d.expectDue(t, idsOfEntries(carried)...)
	d.claim(t, rows[:1])
	d.sweep(t)
	d.expectCommitted(t, idsOfEntries(carried), idsOfEntries(carried)...)
}

// testCarriedStress: due rows are claimed, touched and forgotten at the same time, by several
// workers, in any order, while others are recorded.
func testCarriedStress(t *testing.T, d *database) {
	const rounds, perRound, workers = 10, 20, 3
	var all []driver.Entry
	for range rounds {
		all = append(all, newUnpublished(perRound)...)
	}
	start := time.Now()
	var working, recording sync.WaitGroup
	recording.Go(func() {
		for some := range slices.Chunk(all, perRound) {
			if err := within(t.Context(), d.sender.DB(), func(tx *sql.Tx) error {
				return d.sender.Record(t.Context(), d.in(tx), some)
			}); err != nil {
				t.Errorf("record: %v", err)
			}
		}
	})
	var lock sync.Mutex
	claimed := make(map[uuid.UUID]int)
	work := func(ctx context.Context) (seen int, err error) {
		rows, _, err := d.ledger.Due(ctx, driver.DueRow{}, perRound)
		if err != nil {
			return 0, err
		}
		rand.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
		messages, err := d.ledger.Claim(ctx, rows)
		if err != nil {
			return 0, err
		}
		lock.Lock()
		for _, m := range messages {
			claimed[m.ID]++
		}
		lock.Unlock()
		ids := idsOfDue(rows)
		rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		if err := d.ledger.Touch(ctx, ids); err != nil {
			return 0, err
		}
		_, err = d.ledger.Forget(ctx, ids[:len(ids)/2])
		return len(rows), err
	}
	done := make(chan struct{})
	for range workers {
		working.Go(func() {
			for {
				var last bool
				select {
				case <-done:
					last = true
				default:
				}
				seen, err := work(t.Context())
				if err != nil {
					t.Errorf("work: %v", err)
					return
				}
				if last && seen == 0 {
					return
				}
			}
		})
	}
	recording.Wait()
	close(done)
	working.Wait()
	took := time.Since(start)
	for id, n := range claimed {
		if n != 1 && took < driver.StageAgainAfter {
			t.Errorf("%s is claimed %d times before its new stage time", id, n)
		}
	}
	d.forget(t, idsOfEntries(all)...)
	d.expectCommitted(t, idsOfEntries(all))
}
