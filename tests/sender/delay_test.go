package sender_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// databaseNow returns the database's time.
func databaseNow(t *testing.T, s *stage.Stage) time.Time {
	t.Helper()
	_, now, err := s.Ledger.Due(t.Context(), driver.DueRow{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// A delayed message is carried whatever its size and Options.Carry. It is not published before
// its time by the database's clock. Then it goes out if its transaction has committed.
func TestADelayedMessageArrivesAtItsTime(t *testing.T) {
	t.Parallel()
	for _, kind := range carryDatabases {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, kind)
			s.Queue("target", nil)
			var kept []uuid.UUID
			at := databaseNow(t, s).Add(3 * time.Second)
			for _, how := range []sender.Carry{sender.CarryNever, sender.CarrySmall, sender.CarryOnOutage} {
				sndr := s.NewSender(sender.Options{Carry: how})
				for name, send := range ways {
					delayed := messages("target", 2)
					delayed[0].NotBefore, delayed[1].NotBefore = at, at
					delayed[1].Publishing.Body = make([]byte, 100<<10)
					ids, err := send(t.Context(), sndr, s.DB, func(bridge.Tx) error { return nil }, delayed...)
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					kept = append(kept, ids...)
					lost := errors.New("rolled back")
					if _, err := send(t.Context(), sndr, s.DB, func(bridge.Tx) error { return lost }, delayed...); !errors.Is(err, lost) {
						t.Fatalf("%s: %v", name, err)
					}
				}
			}
			if n := carriedRows(t, s); n != len(kept) {
				t.Errorf("%d rows carry messages, must be %d", n, len(kept))
			}
			for _, id := range kept {
				if made := wire.MadeAt(id); made.Sub(at).Abs() > time.Second {
					t.Errorf("the ID is of %v, the message is due at %v: a receiver judges its age by the ID", made, at)
				}
			}
			if n := s.Depth("staging"); n > 0 {
				t.Errorf("the sender has published %d delayed messages", n)
			}
			s.Verify(verifier.Options{})
			s.Eventually("a message arrives", func() bool { return s.Depth("target") > 0 })
			if now := databaseNow(t, s); now.Before(at) {
				t.Errorf("a message has arrived at %v, and was delayed to %v", now, at)
			}
			arrive(t, s, kept...)
		})
	}
}

// A cancelled message is never delivered once the cancelling transaction commits. If that
// transaction rolls back, or Cancel comes too late and returns false, the message stays.
func TestACancelledMessageIsNeverDelivered(t *testing.T) {
	t.Parallel()
	for _, kind := range carryDatabases {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, kind)
			s.Queue("target", nil)
			sndr := s.NewSender(sender.Options{Timeout: stage.Patience})
			cancel := func(id uuid.UUID, end error) (done bool) {
				t.Helper()
				err := sndr.InTx(t.Context(), s.DB, nil, func(tx *sender.Tx) (err error) {
					if done, err = sndr.Cancel(t.Context(), tx, id); err != nil {
						return err
					}
					return end
				})
				if !errors.Is(err, end) {
					t.Fatal(err)
				}
				return done
			}
			send := func(delay time.Duration, n int) []uuid.UUID {
				t.Helper()
				delayed := messages("target", n)
				at := databaseNow(t, s).Add(delay)
				for i := range delayed {
					delayed[i].NotBefore = at
				}
				tx := begin(t, s.DB)
				ids, err := sndr.SendTx(t.Context(), bridge.SQL(tx), delayed...)
				if err == nil {
					err = tx.Commit()
				}
				if err != nil {
					t.Fatal(err)
				}
				return ids
			}

			// A verifier claims while these are being cancelled. The last one is far from its
			// time.
			raced := append(send(0, 200), send(time.Hour, 1)...)
			rolledBack := errors.New("the order was not paid")
			for _, id := range raced {
				if !cancel(id, rolledBack) {
					t.Fatal("cancel returns false, and no verifier runs")
				}
			}
			s.Verify(verifier.Options{})
			var left []uuid.UUID
			for _, id := range slices.Backward(raced) {
				if !cancel(id, nil) {
					left = append(left, id)
				}
			}
			t.Logf("%d of %d were cancelled", len(raced)-len(left), len(raced))
			if slices.Contains(left, raced[200]) {
				t.Error("a message that waits for its time is not cancelled")
			}
			if cancel(raced[200], nil) {
				t.Error("a message is cancelled twice")
			}
			arrive(t, s, left...)
		})
	}
}
