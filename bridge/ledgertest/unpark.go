package ledgertest

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

func testUnparkOpen(t *testing.T, p *parking) {
	before := p.parked(t, 1)
	tx := begin(t, p.sender.DB())
	open := newParked(1)
	p.park(t, p.in(tx), open)
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
	removed, err := p.ledger.Unpark(t.Context(), uuid.Nil, 1000, func(context.Context, []driver.Parked) error { return failure })
	if removed != 0 || !errors.Is(err, failure) {
		t.Errorf("unpark: %d, %v, must be 0, %v", removed, err, failure)
	}
	p.unpark(t, messages...)
}

func testUnparkCancelled(t *testing.T, p *parking) {
	p.parked(t, 3)
	ctx, cancel := context.WithCancel(t.Context())
	removed, err := p.ledger.Unpark(ctx, uuid.Nil, 1000, func(ctx context.Context, _ []driver.Parked) error {
		cancel()
		<-ctx.Done()
		return nil
	})
	if err != nil || removed != 3 {
		t.Errorf("unpark: %d, %v, must be 3", removed, err)
	}
	p.expectCount(t, 0)
	messages := p.parked(t, 3)
	if removed, err := p.ledger.Unpark(ctx, uuid.Nil, 1000, func(context.Context, []driver.Parked) error {
		t.Error("staged under a context that had ended")
		return nil
	}); removed != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("unpark: %d, %v, must be 0, %v", removed, err, context.Canceled)
	}
	p.unpark(t, messages...)
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
	removed, err := ledger.Unpark(t.Context(), uuid.Nil, 1000, func(context.Context, []driver.Parked) error {
		check(t, p.KillSession(t.Context(), p.sender.DB(), session), "kill")
		return nil
	})
	if err == nil || removed != 0 {
		t.Errorf("an unpark whose connection is dead: %d, %v", removed, err)
	}
	eventually(t, "the messages are parked, and nobody has them locked", func() bool {
		var staged []driver.Parked
		_, err := p.ledger.Unpark(t.Context(), uuid.Nil, 1000, func(_ context.Context, messages []driver.Parked) error {
			staged = messages
			return errors.New("only looking")
		})
		return err != nil && len(staged) == len(messages)
	})
	p.unpark(t, messages...)
}

func testUnparkTwo(t *testing.T, p *parking) {
	messages := p.parked(t, 10)
	var first, second []driver.Parked
	removed, err := p.ledger.Unpark(t.Context(), uuid.Nil, 4, func(ctx context.Context, some []driver.Parked) error {
		first = some
		removed, err := p.sender.Unpark(ctx, uuid.Nil, 100, func(_ context.Context, others []driver.Parked) error {
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
		if _, err := p.ledger.Unpark(t.Context(), uuid.Nil, limit, nil); err == nil {
			t.Errorf("a limit of %d is no error", limit)
		}
	}
	p.unparkBySteps(t, messages, 3, 3, 3, 1, 0)
}

// unparkBySteps unparks up to a limit several times, and expects so many each time, and all of
// the messages in the end.
func (p *parking) unparkBySteps(t *testing.T, messages []driver.Parked, limit int, steps ...int) {
	t.Helper()
	var staged []driver.Parked
	for _, want := range steps {
		removed, err := p.ledger.Unpark(t.Context(), uuid.Nil, limit, func(_ context.Context, some []driver.Parked) error {
			staged = append(staged, some...)
			return nil
		})
		check(t, err, "unpark")
		expect(t, "the number of removed", removed, want)
	}
	expectSame(t, staged, messages)
}

func testUnparkAfter(t *testing.T, p *parking) {
	messages := p.parked(t, 5)
	var order []driver.Parked
	refused := errors.New("refused")
	for after := (uuid.UUID{}); len(order) <= len(messages); after = order[len(order)-1].ID {
		removed, err := p.ledger.Unpark(t.Context(), after, 1, func(_ context.Context, some []driver.Parked) error {
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

	var rest []driver.Parked
	_, err := p.ledger.Unpark(t.Context(), order[1].ID, 10, func(_ context.Context, some []driver.Parked) error {
		rest = some
		return nil
	})
	check(t, err, "unpark")
	expectSame(t, rest, order[2:])
	p.unpark(t, order[:2]...)
}

func testUnparkBytes(t *testing.T, p *parking) {
	if p.Further {
		t.Skip("16 MiB are enough once")
	}
	messages := newParked(3)
	for i := range messages {
		messages[i].Message = bytes.Repeat([]byte{byte(i)}, driver.UnparkBytes/3+1)
	}
	p.commitParked(t, messages)
	p.unparkBySteps(t, messages, 1000, 2, 1)
}
