package sender

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
)

// A tripwire is a ledger that ends the second call of Record by trip.
type tripwire struct {
	parkingLedger
	calls int
	trip  func()
}

func (l *tripwire) Record(context.Context, bridge.Tx, []uuid.UUID) error {
	if l.calls++; l.calls == 2 {
		l.trip()
	}
	return nil
}

// What a Stage had begun to send is not sent, so the transaction must not commit, even if
// fn has recovered.
func TestAStageThatDoesNotReturnLosesNothing(t *testing.T) {
	for name, trip := range map[string]func(){
		"panic":  func() { panic("a bug in a driver") },
		"Goexit": runtime.Goexit,
	} {
		synctest.Test(t, func(t *testing.T) {
			b := new(slowBroker)
			s, _ := newSender(t, Options{OrderedShards: 1}, b, b)
			s.ledger = &tripwire{trip: trip}
			o := s.Outbox(nil)
			if _, err := o.Stage(t.Context(), small); err != nil {
				t.Fatal(err)
			}
			if _, err := o.Send(withKey); err != nil {
				t.Fatal(err)
			}
			var staging sync.WaitGroup
			staging.Go(func() {
				defer func() { _ = recover() }()
				ids, err := o.Stage(t.Context(), withKey)
				t.Errorf("%s: Stage has returned %v, %v", name, ids, err)
			})
			staging.Wait()
			if err := o.Confirm(t.Context()); err == nil || bridge.Retryable(err) {
				t.Errorf("%s: the transaction may commit without what was sent before: %v", name, err)
			}
		})
	}
}
