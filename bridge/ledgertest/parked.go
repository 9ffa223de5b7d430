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
)

// runParked shows that the ledger of h keeps every promise of bridge.Parker and
// bridge.Unparker, or, on an own table, that it is neither.
func runParked(t *testing.T, h Harness) {
	tests := []struct {
		name string
		test func(*testing.T, *parking)
	}{
		{"what is parked comes back byte by byte, once", testParkedBytes},
		{"of many messages in one transaction none is lost", testParkMany},
		{"a rollback takes what is parked back", testParkRollback},
		{"a rollback to a savepoint takes back what was parked after it", testParkSavepoint},
		{"an ID is parked once", testParkDuplicate},
		{"what is not committed is not taken, and not waited for", testUnparkOpen},
		{"a stage that fails leaves all parked", testUnparkStageFails},
		{"a stage that outlives its context is told, and removed if it succeeds", testUnparkCancelled},
		{"the stage has a deadline", testUnparkDeadline},
		{"a connection that dies while it stages leaves all parked", testUnparkKilled},
		{"two unparks at once take different messages", testUnparkTwo},
		{"an unpark takes no more than its limit", testUnparkLimit},
		{"one that is refused can be passed by", testUnparkAfter},
		{"an unpark takes no more bytes than it may, and one message at least", testUnparkBytes},
		{"a message whose row is gone is removed without being staged", testUnparkForwarded},
		{"a message can be looked up, settled and forgotten while it is staged", testUnparkForgetWhileStaging},
		{"a message whose row is locked stays parked", testUnparkLockedRow},
		{"unparks and forgets of the same IDs get along", testUnparkStress},
		{"the count ends at its limit", testCountParked},
		{"no messages are no work", testParkNothing},
	}
	if h.Insert != nil {
		testOwnTableParksNothing(t, h.newDatabase(t))
		return
	}
	p := h.newParking(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.test(t, p)
			p.expectIdle(t)
			p.empty(t)
		})
	}
	t.Run("a transaction of another database is refused", func(t *testing.T) { testParkOtherDatabase(t, h) })
	t.Run("a database that has lost its identity gives nothing out", func(t *testing.T) { testParkLostIdentity(t, h) })
}

// A parking is a database with the ledgers as what they can do with parked messages.
type parking struct {
	*database
	parker   bridge.Parker
	unparker bridge.Unparker
}

func (h Harness) newParking(t *testing.T) *parking {
	t.Helper()
	d := h.newDatabase(t)
	parker, parks := d.sender.(bridge.Parker)
	unparker, unparks := d.ledger.(bridge.Unparker)
	if !parks || !unparks {
		t.Fatal("the ledger can park nothing")
	}
	return &parking{d, parker, unparker}
}

func testOwnTableParksNothing(t *testing.T, d *database) {
	if _, parks := d.sender.(bridge.Parker); parks {
		t.Error("a ledger on an own table can park")
	}
	if _, unparks := d.ledger.(bridge.Unparker); unparks {
		t.Error("a ledger on an own table can unpark")
	}
}

func newParked(n int) []bridge.Parked {
	messages := make([]bridge.Parked, n)
	for i, id := range newIDs(n) {
		messages[i] = bridge.Parked{ID: id, Message: []byte("message " + id.String())}
	}
	return messages
}

func idsOf(messages []bridge.Parked) []uuid.UUID {
	ids := make([]uuid.UUID, len(messages))
	for i, m := range messages {
		ids[i] = m.ID
	}
	return ids
}

// park records and parks in tx.
func (p *parking) park(t *testing.T, tx bridge.Tx, messages []bridge.Parked) {
	t.Helper()
	check(t, p.parker.Record(t.Context(), tx, idsOf(messages)), "record")
	check(t, p.parker.Park(t.Context(), tx, messages), "park")
}

// parked returns so many messages, parked and committed.
func (p *parking) parked(t *testing.T, n int) []bridge.Parked {
	t.Helper()
	messages := newParked(n)
	p.commitParked(t, messages)
	return messages
}

func (p *parking) commitParked(t *testing.T, messages []bridge.Parked) {
	t.Helper()
	tx := begin(t, p.sender.DB())
	p.park(t, tx, messages)
	check(t, tx.Commit(), "commit")
}

// unpark fails unless the next Unpark stages just want, and removes them.
func (p *parking) unpark(t *testing.T, want ...bridge.Parked) {
	t.Helper()
	var got []bridge.Parked
	removed, err := p.unparker.Unpark(t.Context(), uuid.Nil, 1000, func(_ context.Context, messages []bridge.Parked) error {
		if got != nil || len(messages) == 0 {
			t.Errorf("staged %d messages after %d", len(messages), len(got))
		}
		got = messages
		return nil
	})
	check(t, err, "unpark")
	expectSame(t, got, want)
	if removed != len(want) {
		t.Errorf("removed are %d, must be %d", removed, len(want))
	}
}

func expectSame(t *testing.T, got, want []bridge.Parked) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d messages, must be %d", len(got), len(want))
	}
	byID := make(map[uuid.UUID][]byte)
	for _, m := range got {
		byID[m.ID] = m.Message
	}
	for _, m := range want {
		if message, found := byID[m.ID]; !found || !bytes.Equal(message, m.Message) {
			t.Fatalf("message %s: found %t, %d bytes, must be %d", m.ID, found, len(message), len(m.Message))
		}
	}
}

func (p *parking) expectCount(t *testing.T, want int) {
	t.Helper()
	n, err := p.unparker.CountParked(t.Context(), 1000)
	check(t, err, "count")
	if n != want {
		t.Errorf("%d messages are parked, must be %d", n, want)
	}
}

// empty removes what a test has left.
func (p *parking) empty(t *testing.T) {
	t.Helper()
	stage := func(context.Context, []bridge.Parked) error { return nil }
	for removed := 1; removed > 0; {
		var err error
		removed, err = p.unparker.Unpark(t.Context(), uuid.Nil, 1000, stage)
		check(t, err, "unpark")
	}
	p.expectCount(t, 0)
}

func testParkedBytes(t *testing.T, p *parking) {
	messages := newParked(6)
	messages[1].Message = nil
	messages[2].Message = []byte{}
	messages[3].Message = make([]byte, 256)
	for i := range messages[3].Message {
		messages[3].Message[i] = byte(i)
	}
	messages[4].Message = make([]byte, 1<<20)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(messages[4].Message)
	messages[5].Message = []byte("'\\\"$1?@p1:x\x00\\x41%s")
	p.commitParked(t, messages)
	p.expectCommitted(t, idsOf(messages), idsOf(messages)...)
	p.expectCount(t, len(messages))
	p.unpark(t, messages...)
	p.expectCount(t, 0)
	p.unpark(t)
	p.expectCommitted(t, idsOf(messages), idsOf(messages)...) // the verifier forwards them
}

func testParkMany(t *testing.T, p *parking) {
	messages := newParked(1100)
	p.commitParked(t, messages)
	var staged []bridge.Parked
	for removed := 1; removed > 0; {
		var err error
		removed, err = p.unparker.Unpark(t.Context(), uuid.Nil, 10_000, func(_ context.Context, some []bridge.Parked) error {
			staged = append(staged, some...)
			return nil
		})
		check(t, err, "unpark")
	}
	expectSame(t, staged, messages)
}

func testParkRollback(t *testing.T, p *parking) {
	tx := begin(t, p.sender.DB())
	p.park(t, tx, newParked(3))
	check(t, tx.Rollback(), "roll back")
	p.expectCount(t, 0)
	p.unpark(t)
}

func testParkSavepoint(t *testing.T, p *parking) {
	outside, inside, after := newParked(2), newParked(2), newParked(2)
	tx := begin(t, p.sender.DB())
	p.park(t, tx, outside)
	exec := func(statement string) {
		_, err := tx.ExecContext(t.Context(), statement)
		check(t, err, statement)
	}
	exec(p.Savepoint)
	p.park(t, tx, inside)
	exec(p.RollbackTo)
	p.park(t, tx, after)
	check(t, tx.Commit(), "commit")
	p.unpark(t, append(outside, after...)...)
}

func testParkDuplicate(t *testing.T, p *parking) {
	message := newParked(1)
	tx := begin(t, p.sender.DB())
	p.park(t, tx, message)
	if err := p.parker.Park(t.Context(), tx, message); !errors.Is(err, bridge.ErrDuplicateID) {
		t.Errorf("park an ID again: %v, must be %v", err, bridge.ErrDuplicateID)
	}
	check(t, tx.Rollback(), "roll back")
}

func testUnparkOpen(t *testing.T, p *parking) {
	before := p.parked(t, 1)
	tx := begin(t, p.sender.DB())
	open := newParked(1)
	p.park(t, tx, open)
	p.expectCount(t, 1)
	if p.OneWriter {
		check(t, tx.Commit(), "commit")
		p.unpark(t, append(before, open...)...)
		return
	}
	p.unpark(t, before...)
	check(t, tx.Commit(), "commit")
	p.unpark(t, open...)
}

func testUnparkStageFails(t *testing.T, p *parking) {
	messages := p.parked(t, 3)
	failure := errors.New("no broker")
	removed, err := p.unparker.Unpark(t.Context(), uuid.Nil, 1000, func(context.Context, []bridge.Parked) error { return failure })
	if removed != 0 || !errors.Is(err, failure) {
		t.Errorf("unpark: %d, %v, must be 0, %v", removed, err, failure)
	}
	p.unpark(t, messages...)
}

func testUnparkCancelled(t *testing.T, p *parking) {
	p.parked(t, 3)
	ctx, cancel := context.WithCancel(t.Context())
	removed, err := p.unparker.Unpark(ctx, uuid.Nil, 1000, func(ctx context.Context, _ []bridge.Parked) error {
		cancel()
		<-ctx.Done()
		return nil
	})
	if err != nil || removed != 3 {
		t.Errorf("unpark: %d, %v, must be 3", removed, err)
	}
	p.expectCount(t, 0)
	messages := p.parked(t, 3)
	if removed, err := p.unparker.Unpark(ctx, uuid.Nil, 1000, func(context.Context, []bridge.Parked) error {
		t.Error("staged under a context that had ended")
		return nil
	}); removed != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("unpark: %d, %v, must be 0, %v", removed, err, context.Canceled)
	}
	p.unpark(t, messages...)
}

func testUnparkDeadline(t *testing.T, p *parking) {
	p.parked(t, 1)
	_, err := p.unparker.Unpark(t.Context(), uuid.Nil, 1000, func(ctx context.Context, _ []bridge.Parked) error {
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > bridge.UnparkPatience {
			t.Errorf("the deadline is %v, %t", deadline, ok)
		}
		return nil
	})
	check(t, err, "unpark")
}

func testUnparkKilled(t *testing.T, p *parking) {
	if p.KillSession == nil || p.SessionID == "" {
		t.Skip("no session can be killed from outside")
	}
	messages := p.parked(t, 3)
	db := p.connect()
	db.SetMaxOpenConns(1)
	ledger, err := p.Open(t.Context(), db)
	check(t, err, "open")
	session := scalar(t, db, p.SessionID)
	removed, err := ledger.(bridge.Unparker).Unpark(t.Context(), uuid.Nil, 1000, func(context.Context, []bridge.Parked) error {
		check(t, p.KillSession(t.Context(), p.sender.DB(), session), "kill")
		return nil
	})
	if err == nil || removed != 0 {
		t.Errorf("an unpark whose connection is dead: %d, %v", removed, err)
	}
	eventually(t, "the messages are parked, and nobody has them locked", func() bool {
		var staged []bridge.Parked
		_, err := p.unparker.Unpark(t.Context(), uuid.Nil, 1000, func(_ context.Context, messages []bridge.Parked) error {
			staged = messages
			return errors.New("only looking")
		})
		return err != nil && len(staged) == len(messages)
	})
	p.unpark(t, messages...)
}

func testUnparkTwo(t *testing.T, p *parking) {
	messages := p.parked(t, 10)
	var first, second []bridge.Parked
	removed, err := p.unparker.Unpark(t.Context(), uuid.Nil, 4, func(ctx context.Context, some []bridge.Parked) error {
		first = some
		removed, err := p.sender.(bridge.Unparker).Unpark(ctx, uuid.Nil, 100, func(_ context.Context, others []bridge.Parked) error {
			second = others
			return nil
		})
		if removed != len(second) {
			t.Errorf("the second has removed %d of %d", removed, len(second))
		}
		return err
	})
	check(t, err, "unpark")
	p.expectCount(t, 0)
	if p.Overlap {
		for _, id := range idsOf(messages) {
			if !contains(idsOf(first), id) && !contains(idsOf(second), id) {
				t.Errorf("nobody has staged %s", id)
			}
		}
		return
	}
	if removed != 4 {
		t.Errorf("the first has removed %d, must be 4", removed)
	}
	expectSame(t, append(first, second...), messages)
}

func testUnparkLimit(t *testing.T, p *parking) {
	messages := p.parked(t, 7)
	for _, limit := range []int{0, -1} {
		if _, err := p.unparker.Unpark(t.Context(), uuid.Nil, limit, nil); err == nil {
			t.Errorf("a limit of %d is no error", limit)
		}
	}
	var staged []bridge.Parked
	for _, want := range []int{3, 3, 1, 0} {
		removed, err := p.unparker.Unpark(t.Context(), uuid.Nil, 3, func(_ context.Context, some []bridge.Parked) error {
			staged = append(staged, some...)
			return nil
		})
		check(t, err, "unpark")
		if removed != want {
			t.Errorf("removed are %d, must be %d", removed, want)
		}
	}
	expectSame(t, staged, messages)
}

func testUnparkAfter(t *testing.T, p *parking) {
	messages := p.parked(t, 5)
	var order []bridge.Parked
	refused := errors.New("refused")
	for after := (uuid.UUID{}); len(order) <= len(messages); after = order[len(order)-1].ID {
		removed, err := p.unparker.Unpark(t.Context(), after, 1, func(_ context.Context, some []bridge.Parked) error {
			order = append(order, some...)
			return refused
		})
		if removed != 0 {
			t.Fatalf("removed are %d, and none was staged", removed)
		}
		if !errors.Is(err, refused) {
			check(t, err, "unpark")
			break
		}
	}
	expectSame(t, order, messages)

	var rest []bridge.Parked
	_, err := p.unparker.Unpark(t.Context(), order[1].ID, 10, func(_ context.Context, some []bridge.Parked) error {
		rest = some
		return nil
	})
	check(t, err, "unpark")
	expectSame(t, rest, order[2:])
	p.unpark(t, order[:2]...)
}

func testUnparkBytes(t *testing.T, p *parking) {
	messages := newParked(3)
	for i := range messages {
		messages[i].Message = bytes.Repeat([]byte{byte(i)}, bridge.UnparkBytes/3+1)
	}
	p.commitParked(t, messages)
	var staged []bridge.Parked
	for _, want := range []int{2, 1} {
		removed, err := p.unparker.Unpark(t.Context(), uuid.Nil, 1000, func(_ context.Context, some []bridge.Parked) error {
			staged = append(staged, some...)
			return nil
		})
		check(t, err, "unpark")
		if removed != want {
			t.Errorf("removed are %d, must be %d", removed, want)
		}
	}
	expectSame(t, staged, messages)
}

// As after a late confirm: the staged copy was forwarded and forgotten.
func testUnparkForwarded(t *testing.T, p *parking) {
	messages := p.parked(t, 2)
	gone, other := messages[0], messages[1]
	check(t, p.ledger.Forget(t.Context(), []uuid.UUID{gone.ID}), "forget")
	var staged []bridge.Parked
	removed, err := p.unparker.Unpark(t.Context(), uuid.Nil, 1000, func(_ context.Context, messages []bridge.Parked) error {
		staged = messages
		return nil
	})
	check(t, err, "unpark")
	expectSame(t, staged, []bridge.Parked{other})
	if removed != 2 {
		t.Errorf("removed are %d, must be 2", removed)
	}
	gone = p.parked(t, 1)[0]
	check(t, p.ledger.Forget(t.Context(), []uuid.UUID{gone.ID}), "forget")
	removed, err = p.unparker.Unpark(t.Context(), uuid.Nil, 1000, func(context.Context, []bridge.Parked) error {
		t.Error("it is staged")
		return nil
	})
	check(t, err, "unpark")
	if removed != 1 {
		t.Errorf("removed are %d, must be 1", removed)
	}
}

// The staged copy may be through before the unpark has committed.
func testUnparkForgetWhileStaging(t *testing.T, p *parking) {
	forgotten := p.parked(t, 3)
	kept := p.parked(t, 1)
	all := append(idsOf(forgotten), kept[0].ID)
	removed, err := p.unparker.Unpark(t.Context(), uuid.Nil, 1000, func(context.Context, []bridge.Parked) error {
		p.expectCommitted(t, all, all...)
		p.expectSettled(t, all[0], bridge.Committed)
		start := time.Now()
		check(t, p.ledger.Forget(t.Context(), idsOf(forgotten)), "forget")
		if took := time.Since(start); took > prompt {
			t.Errorf("the forget took %v", took)
		}
		p.expectSettled(t, all[0], bridge.RolledBack)
		return nil
	})
	check(t, err, "unpark")
	if removed != 4 {
		t.Errorf("removed are %d, must be 4", removed)
	}
	p.expectCommitted(t, all, kept[0].ID)
}

// lockedRow begins a transaction that deletes the row of an ID, as a Forget does, and
// has it locked until it ends.
func (d *database) lockedRow(t *testing.T, id uuid.UUID) *sql.Tx {
	t.Helper()
	tx := begin(t, d.sender.DB())
	_, err := tx.ExecContext(t.Context(), "DELETE FROM bridge_ledger WHERE id = "+d.Literal(id))
	check(t, err, "lock a row")
	return tx
}

// skipWithoutSkipping skips a test of what passes over locked rows.
func (d *database) skipWithoutSkipping(t *testing.T) {
	t.Helper()
	if d.OneWriter {
		t.Skip("there are no two writers")
	}
	if d.NoSkip {
		t.Skip("nothing passes over a row that is locked")
	}
}

func testUnparkLockedRow(t *testing.T, p *parking) {
	p.skipWithoutSkipping(t)
	for _, end := range []string{"rollback", "commit"} {
		messages := p.parked(t, 3)
		var tx *sql.Tx
		start := time.Now()
		removed, err := p.unparker.Unpark(t.Context(), uuid.Nil, 1000, func(context.Context, []bridge.Parked) error {
			tx = p.lockedRow(t, messages[1].ID)
			return nil
		})
		check(t, err, "unpark")
		if removed != 2 {
			t.Errorf("removed are %d, must be 2", removed)
		}
		if took := time.Since(start); took > prompt {
			t.Errorf("the unpark took %v", took)
		}
		if end == "rollback" {
			check(t, tx.Rollback(), "roll back")
			p.unpark(t, messages[1])
			continue
		}
		check(t, tx.Commit(), "commit")
		removed, err = p.unparker.Unpark(t.Context(), uuid.Nil, 1000, func(context.Context, []bridge.Parked) error {
			t.Error("it is staged again")
			return nil
		})
		check(t, err, "unpark")
		if removed != 1 {
			t.Errorf("removed are %d, must be 1", removed)
		}
	}
}

// What is staged is looked up, settled and forgotten at once, by several, in any
// order, while other unparks go on.
func testUnparkStress(t *testing.T, p *parking) {
	if p.NoSkip {
		t.Skip("an unpark and a forget may wait for each other")
	}
	const rounds, perRound, forgetters, unparkers = 10, 20, 3, 2
	for range rounds {
		p.parked(t, perRound)
	}
	staged := make(chan []uuid.UUID, rounds*perRound*10)
	var forgetting, unparking sync.WaitGroup
	for range forgetters {
		forgetting.Go(func() {
			for ids := range staged {
				ids = slices.Clone(ids)
				rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
				if _, err := p.ledger.Committed(t.Context(), ids); err != nil {
					t.Errorf("look up: %v", err)
				}
				if _, err := p.ledger.Settle(t.Context(), ids[0], wait); err != nil {
					t.Errorf("settle: %v", err)
				}
				if err := p.ledger.Forget(t.Context(), ids); err != nil {
					t.Errorf("forget: %v", err)
				}
			}
		})
	}
	for range unparkers {
		unparking.Go(func() {
			for {
				_, err := p.unparker.Unpark(t.Context(), uuid.Nil, perRound/2, func(_ context.Context, messages []bridge.Parked) error {
					ids := idsOf(messages)
					for range forgetters { // each of them meets the others
						staged <- ids
					}
					return nil
				})
				if err != nil {
					t.Errorf("unpark: %v", err)
					return
				}
				n, err := p.unparker.CountParked(t.Context(), 1)
				if err != nil || n == 0 {
					return
				}
			}
		})
	}
	unparking.Wait()
	close(staged)
	forgetting.Wait()
	p.expectCount(t, 0)
}

func testCountParked(t *testing.T, p *parking) {
	p.parked(t, 5)
	for limit, want := range map[int]int{1: 1, 5: 5, 100: 5} {
		n, err := p.unparker.CountParked(t.Context(), limit)
		check(t, err, "count")
		if n != want {
			t.Errorf("the count with a limit of %d is %d, must be %d", limit, n, want)
		}
	}
}

func testParkNothing(t *testing.T, p *parking) {
	tx := begin(t, p.sender.DB())
	check(t, p.parker.Park(t.Context(), tx, nil), "park nothing")
	check(t, tx.Commit(), "commit")
	p.unpark(t)
}

func testParkOtherDatabase(t *testing.T, h Harness) {
	first, second := h.newParking(t), h.newParking(t)
	messages := newParked(1)
	tx := begin(t, second.sender.DB())
	check(t, second.sender.Record(t.Context(), tx, idsOf(messages)), "record")
	if err := first.parker.Park(t.Context(), tx, messages); !errors.Is(err, bridge.ErrOtherLedger) {
		t.Errorf("park: %v, must be %v", err, bridge.ErrOtherLedger)
	}
	check(t, tx.Rollback(), "roll back")
	second.expectCount(t, 0)
}

// Messages of another ledger would be staged only to be refused.
func testParkLostIdentity(t *testing.T, h Harness) {
	p := h.newParking(t)
	p.parked(t, 1)
	_, err := p.sender.DB().ExecContext(t.Context(), `DELETE FROM bridge_identity`)
	check(t, err, "take the identity away")
	removed, err := p.unparker.Unpark(t.Context(), uuid.Nil, 1000, func(context.Context, []bridge.Parked) error {
		t.Error("it is staged")
		return nil
	})
	if removed != 0 || !errors.Is(err, bridge.ErrOtherLedger) {
		t.Errorf("unpark: %d, %v, must be 0, %v", removed, err, bridge.ErrOtherLedger)
	}
	p.expectCount(t, 1)
}
