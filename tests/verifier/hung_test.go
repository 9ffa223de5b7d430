package verifier_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// A driver may wait for a lost database host whatever its context says, as go-sql-driver does in
// COMMIT. Even so the verifier's messages must return to the queue.
func TestADatabaseCallThatHangsHoldsNoMessages(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*hungLedger, *stage.Running){
		"when the session fails":  func(l *hungLedger, _ *stage.Running) { close(l.fail) },
		"when the verifier stops": func(_ *hungLedger, r *stage.Running) { r.Cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, stage.Postgres)
			s.StageSingly()
			queue := s.Queue("target", nil)
			hung := &hungLedger{Ledger: s.Ledger, open: uuid.New(), hangs: uuid.New(),
				settled: make(chan struct{}), begun: make(chan struct{}), fail: make(chan struct{}), release: make(chan struct{})}
			s.Ledger = hung
			running := s.Verify(verifier.Options{Drain: time.Millisecond})
			defer close(hung.release)
			message := func(id uuid.UUID) bridge.Message {
				m := stage.To(queue, "")
				m.ID = id
				return m
			}
			open, _ := s.Begin(message(hung.open))
			defer func() { _ = open.Rollback() }()
			servertest.Next(t, "the open one is settled", hung.settled)
			s.Commit(message(hung.hangs))
			select {
			case <-hung.begun:
			case <-time.After(stage.Patience):
				t.Fatal("the message is not looked up")
			}
			end(hung, running)
			s.WaitDepth(s.Topology.Queue, 2)
		})
	}
}

// hungLedger blocks the lookup of one ID until it is released, and the settle of another until it
// is released or must fail.
type hungLedger struct {
	driver.Ledger
	hangs, open                   uuid.UUID
	settled, begun, fail, release chan struct{}
	first, once                   sync.Once
}

func (l *hungLedger) Committed(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, driver.Instance, error) {
	if slices.Contains(ids, l.hangs) {
		l.once.Do(func() { close(l.begun) })
		<-l.release
	}
	return l.Ledger.Committed(ctx, ids)
}

func (l *hungLedger) Settle(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, driver.Instance, error) {
	if id == l.open {
		l.first.Do(func() { close(l.settled) })
		select {
		case <-l.fail:
			return driver.StillOpen, "", errors.New("the connection is gone")
		case <-l.release:
		}
	}
	return l.Ledger.Settle(ctx, id, wait)
}
