package ledgertest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// runParked shows that the ledger keeps every promise of Park, Unpark and
// CountParked, or, on an own table, that they are denied.
func runParked(t *testing.T, d *database) {
	if d.Insert != nil {
		testOwnTableParksNothing(t, d)
		return
	}
	if f := d.ledger.Features(); !f.Parks || f.KeepsRows {
		t.Fatalf("the features are %+v", f)
	}
	p := d.parking()
	run(t, d.Harness, p, []test[*parking]{
		{"what is parked comes back byte by byte, once", testParkedBytes},
		{"of many messages in one transaction none is lost", testParkMany},
		{"an ID is parked once", testParkDuplicate},
		{"a stage that outlives its context is told, and removed if it succeeds", testUnparkCancelled},
		{"the count ends at its limit", testCountParked},
		{"no messages are no work", testParkNothing},
	}, []test[*parking]{
		{"a rollback takes what is parked back", testParkRollback},
		{"a rollback to a savepoint takes back what was parked after it", testParkSavepoint},
		{"what is not committed is not taken, and not waited for", testUnparkOpen},
		{"a stage that fails leaves all parked", testUnparkStageFails},
		{"a connection that dies while it stages leaves all parked", testUnparkKilled},
		{"two unparks at once take different messages", testUnparkTwo},
		{"an unpark takes no more than its limit", testUnparkLimit},
		{"an unpark takes no more bytes than it may, and one message at least", testUnparkBytes},
		{"one that is refused can be passed by", testUnparkAfter},
		{"a message whose row is gone is removed without being staged", testUnparkForwarded},
		{"a message can be looked up, settled and forgotten while it is staged", testUnparkForgetWhileStaging},
		{"a message whose row is locked stays parked", testUnparkLockedRow},
		{"unparks and forgets of the same IDs get along", testUnparkStress},
	}, func(t *testing.T) {
		p.expectIdle(t)
		p.empty(t)
	})
}

// A parking is a database whose ledgers park.
type parking struct{ *database }

func (d *database) parking() *parking { return &parking{d} }

func testOwnTableParksNothing(t *testing.T, d *database) {
	if f := d.ledger.Features(); f.Parks || !f.KeepsRows {
		t.Errorf("the features of a ledger on an own table are %+v", f)
	}
	tx := begin(t, d.sender.DB())
	expectDenied(t, "park", d.sender.Park(t.Context(), d.in(tx), newParked(1)))
	check(t, tx.Rollback(), "roll back")
	_, err := d.ledger.Unpark(t.Context(), uuid.Nil, 1, func(context.Context, []driver.Parked) error { return nil })
	expectDenied(t, "unpark", err)
	_, err = d.ledger.CountParked(t.Context(), 1)
	expectDenied(t, "count parked messages", err)
}

func newParked(n int) []driver.Parked {
	messages := make([]driver.Parked, n)
	for i, id := range newIDs(n) {
		messages[i] = driver.Parked{ID: id, Message: []byte("message " + id.String())}
	}
	return messages
}

func idsOf(messages []driver.Parked) []uuid.UUID {
	ids := make([]uuid.UUID, len(messages))
	for i, m := range messages {
		ids[i] = m.ID
	}
	return ids
}

// park records and parks in tx.
func (p *parking) park(t *testing.T, tx bridge.Tx, messages []driver.Parked) {
	t.Helper()
	check(t, p.sender.Record(t.Context(), tx, driver.Plain(idsOf(messages)...)), "record")
	check(t, p.sender.Park(t.Context(), tx, messages), "park")
}

// parked returns so many messages, parked and committed.
func (p *parking) parked(t *testing.T, n int) []driver.Parked {
	t.Helper()
	messages := newParked(n)
	p.commitParked(t, messages)
	return messages
}

func (p *parking) commitParked(t *testing.T, messages []driver.Parked) {
	t.Helper()
	tx := begin(t, p.sender.DB())
	p.park(t, p.in(tx), messages)
	check(t, tx.Commit(), "commit")
}

// unpark fails unless the next Unpark stages just want, and removes them.
func (p *parking) unpark(t *testing.T, want ...driver.Parked) {
	t.Helper()
	var got []driver.Parked
	removed, err := p.ledger.Unpark(bounded(t), uuid.Nil, 1000, func(_ context.Context, messages []driver.Parked) error {
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

func expectSame(t *testing.T, got, want []driver.Parked) {
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
	n, err := p.ledger.CountParked(t.Context(), 1000)
	check(t, err, "count")
	if n != want {
		t.Errorf("%d messages are parked, must be %d", n, want)
	}
}

// empty removes what a test has left.
func (p *parking) empty(t *testing.T) {
	t.Helper()
	stage := func(context.Context, []driver.Parked) error { return nil }
	for removed := 1; removed > 0; {
		var err error
		removed, err = p.ledger.Unpark(t.Context(), uuid.Nil, 1000, stage)
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
	var staged []driver.Parked
	for removed := 1; removed > 0; {
		var err error
		removed, err = p.ledger.Unpark(t.Context(), uuid.Nil, 10_000, func(_ context.Context, some []driver.Parked) error {
			staged = append(staged, some...)
			return nil
		})
		check(t, err, "unpark")
	}
	expectSame(t, staged, messages)
}

func testParkRollback(t *testing.T, p *parking) {
	tx := begin(t, p.sender.DB())
	p.park(t, p.in(tx), newParked(3))
	check(t, tx.Rollback(), "roll back")
	p.expectCount(t, 0)
	p.unpark(t)
}

func testParkSavepoint(t *testing.T, p *parking) {
	outside, inside, after := newParked(2), newParked(2), newParked(2)
	tx := begin(t, p.sender.DB())
	p.park(t, p.in(tx), outside)
	exec := func(statement string) {
		_, err := tx.ExecContext(t.Context(), statement)
		check(t, err, statement)
	}
	exec(p.Savepoint)
	p.park(t, p.in(tx), inside)
	exec(p.RollbackTo)
	p.park(t, p.in(tx), after)
	check(t, tx.Commit(), "commit")
	p.unpark(t, append(outside, after...)...)
}

func testParkDuplicate(t *testing.T, p *parking) {
	message := newParked(1)
	tx := begin(t, p.sender.DB())
	p.park(t, p.in(tx), message)
	if err := p.sender.Park(t.Context(), p.in(tx), message); !errors.Is(err, bridge.ErrDuplicateID) {
		t.Errorf("park an ID again: %v, must be %v", err, bridge.ErrDuplicateID)
	}
	check(t, tx.Rollback(), "roll back")
}

func testCountParked(t *testing.T, p *parking) {
	p.parked(t, 5)
	for limit, want := range map[int]int{1: 1, 5: 5, 100: 5} {
		n, err := p.ledger.CountParked(t.Context(), limit)
		check(t, err, "count")
		if n != want {
			t.Errorf("the count with a limit of %d is %d, must be %d", limit, n, want)
		}
	}
}

func testParkNothing(t *testing.T, p *parking) {
	tx := begin(t, p.sender.DB())
	check(t, p.sender.Park(t.Context(), p.in(tx), nil), "park nothing")
	check(t, tx.Commit(), "commit")
	p.unpark(t)
}

// expectDenied fails unless err is that of a verb that the features deny.
func expectDenied(t *testing.T, verb string, err error) {
	t.Helper()
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("%s: %v, must be %v", verb, err, errors.ErrUnsupported)
	}
}
