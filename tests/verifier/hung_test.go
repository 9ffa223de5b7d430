package verifier_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
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

// Rule 12 of package bridge, with a driver that ignores the contexts of the side jobs' calls:
// messages flow, sessions end, and one call of each job hangs, however many sessions there are.
func TestASideJobThatHangsHoldsNoSessionUp(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	valve, address := servertest.Through(t, s.AMQP)
	hung := &hungJobs{Ledger: s.Ledger, release: make(chan struct{})}
	defer close(hung.release)
	usual := s.Broker
	s.Ledger, s.Broker = hung, dial(t, address)
	v := s.Verify(verifier.Options{Unroutable: stage.Patience, Watcher: hung, ExplainAfter: 50 * time.Millisecond})
	s.Broker = usual
	s.Eventually("the queues have been empty, for a sweep", func() bool { return hung.sweeping.Load() > 0 })
	open, _ := s.Begin(stage.To(queue, "open")) // something to explain
	defer func() { _ = open.Rollback() }()
	s.Eventually("the holder of a message is asked for", func() bool { return hung.explaining.Load() > 0 })
	carrying(s)
	held := s.Commit(stage.To("missing", "held")) // something to touch
	ids := map[string]bool{}
	for range 3 {
		s.Eventually("a message is set aside without a touch", func() bool { return v.Stats().SetAside > 0 && hung.touching.Load() > 0 && hung.looking.Load() > 0 })
		sessions, forwarded := v.Stats().Sessions, v.Stats().Forwarded
		maps.Copy(ids, goodBatch(s, queue, 10))
		s.Eventually("messages are forwarded", func() bool { return v.Stats().Forwarded >= forwarded+10 })
		valve.Cut()
		s.Eventually("a new session", func() bool { return v.Stats().Sessions > sessions })
	}
	expectAll(t, s, queue, ids)
	missing := map[string]bool{}
	add(missing, held...)
	expectAll(t, s, s.Queue("missing", nil), missing)
	began := time.Now()
	v.Stop()
	if took := time.Since(began); took > stage.Patience/4 {
		t.Errorf("the verifier has taken %v to stop", took)
	}
	for name, calls := range map[string]*atomic.Int32{
		"Due": &hung.looking, "Touch": &hung.touching, "Sweep": &hung.sweeping, "Holders": &hung.explaining,
	} {
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls of %s hang", n, name)
		}
	}
}

// hungJobs blocks the calls of the side jobs until it is released.
type hungJobs struct {
	driver.Ledger
	looking, touching, sweeping, explaining atomic.Int32
	release                                 chan struct{}
}

func (l *hungJobs) Sweep(ctx context.Context, age time.Duration, limit int) ([]driver.Orphan, error) {
	l.sweeping.Add(1)
	<-l.release
	return l.Ledger.Sweep(ctx, age, limit)
}

func (l *hungJobs) Holders(context.Context, uuid.UUID) ([]inspect.Holder, error) {
	l.explaining.Add(1)
	<-l.release
	return nil, nil
}

func (l *hungJobs) OpenTransactions(context.Context, time.Duration, int) ([]inspect.Holder, error) {
	return nil, nil
}

func (l *hungJobs) Due(ctx context.Context, after driver.DueRow, limit int) ([]driver.DueRow, time.Time, error) {
	l.looking.Add(1)
	<-l.release
	return l.Ledger.Due(ctx, after, limit)
}

func (l *hungJobs) Touch(ctx context.Context, ids []uuid.UUID) error {
	l.touching.Add(1)
	<-l.release
	return l.Ledger.Touch(ctx, ids)
}
