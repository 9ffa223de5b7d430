package verifier_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// The lock may belong to an operator, or to a client whose host is lost. Each message is
// forwarded once, in one session, and the row is deleted when the lock ends.
func TestALockedRowHoldsUpNoOtherMessage(t *testing.T) {
	t.Parallel()
	for _, kind := range []stage.Database{stage.Postgres, stage.MariaDB} {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, kind)
			queue := s.Queue("target", nil)
			s.StageSingly()
			const prefetch = 50
			ids := goodBatch(s, queue, 2*prefetch)
			locked := s.Commit(stage.To(queue, "locked"))
			add(ids, locked...)
			operator, err := s.DB.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = operator.Rollback() }()
			statement, key := "DELETE FROM bridge_ledger WHERE id = $1", any(locked[0])
			if kind.Name == stage.MariaDB.Name {
				statement, key = "DELETE FROM bridge_ledger WHERE id = ?", locked[0][:]
			}
			if _, err := operator.ExecContext(t.Context(), statement, key); err != nil {
				t.Fatal(err)
			}
			v := s.Verify(verifier.Options{Prefetch: prefetch})
			expectAll(t, s, queue, ids)
			s.Eventually("the other rows are deleted", func() bool { return s.Rows() == 1 })
			s.Eventually("nothing is staged", func() bool { return v.State().Held == 0 && s.Depth(s.Topology.Queue) == 0 })
			if n := v.State().Undeleted; n != 1 {
				t.Errorf("%d rows are said to be left, must be 1", n)
			}
			if err := operator.Rollback(); err != nil {
				t.Fatal(err)
			}
			s.Eventually("the row is deleted", func() bool { return s.Rows() == 0 })
			if n := s.Depth(queue); n != 0 {
				t.Errorf("%d messages came twice", n)
			}
			if n := v.Stats(); n.Sessions != 1 || n.Forwarded != int64(len(ids)) {
				t.Errorf("stats %+v", n)
			}
		})
	}
}

// A DELETE that fails or hangs, even if it ignores its context, leaves a row and loses no message.
// When DELETEs work again, the rows are deleted.
func TestADeleteThatFailsHoldsUpNoMessage(t *testing.T) {
	t.Parallel()
	released := make(chan struct{})
	for way, fail := range map[string]func() error{
		"fails": func() error { return errors.New("no right yet") },
		"hangs": func() error { <-released; return errors.New("released") },
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, stage.Postgres)
			queue := s.Queue("target", nil)
			s.StageSingly()
			const prefetch = 20
			ids := goodBatch(s, queue, 5*prefetch)
			ledger := &undeleting{Ledger: s.Ledger, of: ids, fail: fail}
			s.Ledger = ledger
			v := s.Verify(verifier.Options{Prefetch: prefetch})
			expectAll(t, s, queue, ids)
			s.Eventually("all are acked", func() bool { return v.State().Held == 0 && s.Depth(s.Topology.Queue) == 0 })
			s.Eventually("the state has the error of the DELETE", func() bool { return v.State().DeleteErr != nil })
			if state := v.State(); state.Undeleted != len(ids) {
				t.Errorf("%d rows are said to be left, must be %d", state.Undeleted, len(ids))
			}
			if n := v.Stats(); n.Sessions != 1 || n.Forwarded != int64(len(ids)) {
				t.Errorf("stats %+v", n)
			}
			ledger.works.Store(true)
			if way == "hangs" {
				close(released)
			}
			s.Eventually("the rows are deleted", func() bool { return s.Rows() == 0 })
			s.Eventually("the verifier says so", func() bool { return v.State().Undeleted == 0 && v.State().DeleteErr == nil })
			expectAll(t, s, queue, goodBatch(s, queue, prefetch))
			s.Eventually("their rows are deleted", func() bool { return s.Rows() == 0 })
		})
	}
}

// undeleting fails to delete rows of these IDs until it works. The proof's IDs are not among
// them.
type undeleting struct {
	driver.Ledger
	of    map[string]bool
	fail  func() error
	works atomic.Bool
}

func (l *undeleting) Forget(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	if !l.works.Load() && slices.ContainsFunc(ids, func(id uuid.UUID) bool { return l.of[id.String()] }) {
		return nil, l.fail()
	}
	return l.Ledger.Forget(ctx, ids)
}

// The next session may be long in coming. Until then other verifiers could stage carried messages
// again whose rows are left.
func TestRowsOfDeliveredMessagesAreDeletedBetweenSessions(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	s.StageSingly()
	ids := goodBatch(s, queue, 20)
	valve, address := servertest.Through(t, s.AMQP)
	denied := func() error { return errors.New("no right yet") }
	ledger := &slowStart{undeleting: undeleting{Ledger: s.Ledger, of: ids, fail: denied}, begin: make(chan struct{})}
	s.Ledger, s.Broker = ledger, dial(t, address)
	v := s.Verify(verifier.Options{})
	expectAll(t, s, queue, ids)
	s.Eventually("all are acked", func() bool { return v.State().Undeleted == len(ids) && s.Depth(s.Topology.Queue) == 0 })
	valve.Cut()
	s.Eventually("the rows are deleted", func() bool { return s.Rows() == 0 })
	if n := v.Stats().Sessions; n != 1 {
		t.Errorf("%d sessions have begun, must be 1", n)
	}
	close(ledger.begin)
	s.Eventually("a new session", func() bool { return v.Stats().Sessions == 2 })
	if n := v.State().Undeleted; n != 0 {
		t.Errorf("%d rows are said to be left", n)
	}
}

// After an error of the database another server may answer, an old primary for example.
func TestNoRowIsDeletedAfterAnErrorOfTheDatabaseUntilTheNextProof(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	s.StageSingly()
	ids := goodBatch(s, queue, 20)
	denied := func() error { return errors.New("no right yet") }
	ledger := &slowStart{undeleting: undeleting{Ledger: s.Ledger, of: ids, fail: denied}, begin: make(chan struct{}), began: make(chan struct{})}
	s.Ledger = ledger
	v := s.Verify(verifier.Options{})
	expectAll(t, s, queue, ids)
	s.Eventually("all are acked", func() bool { return v.State().Undeleted == len(ids) && s.Depth(s.Topology.Queue) == 0 })
	ledger.lost.Store(true)
	s.Commit(stage.To(queue, "ends the session"))
	servertest.Next(t, "the start of the next session", ledger.began)
	for range 3 { // the proof fails, and the next one begins
		ledger.begin <- struct{}{}
		servertest.Next(t, "the start of the next session", ledger.began)
	}
	if n := ledger.forgets.Load(); n > 0 {
		t.Errorf("%d DELETEs between the sessions", n)
	}
	ledger.lost.Store(false)
	close(ledger.begin)
	s.Eventually("the rows are deleted", func() bool { return s.Rows() == 0 })
	s.Receive(queue, 1)
}

// A slowStart holds up the start of further sessions: each waits for an element of begin. Rows can be
// deleted as soon as the second start begins. While the database is lost, lookups and starts fail.
type slowStart struct {
	undeleting
	begin   chan struct{}
	began   chan struct{} // receives an element per further start; may be nil
	starts  atomic.Int64
	lost    atomic.Bool
	forgets atomic.Int64 // while the database is lost
}

func (l *slowStart) Forget(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	if l.lost.Load() && l.starts.Load() > 1 {
		l.forgets.Add(1)
	}
	return l.undeleting.Forget(ctx, ids)
}

func (l *slowStart) Committed(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, driver.Instance, error) {
	if l.lost.Load() {
		return nil, "", errors.New("the connection is lost")
	}
	return l.undeleting.Committed(ctx, ids)
}

func (l *slowStart) Check(ctx context.Context) error {
	if l.starts.Add(1) > 1 {
		l.works.Store(true)
		if l.began != nil {
			select {
			case l.began <- struct{}{}:
			case <-ctx.Done():
			}
		}
		select {
		case <-l.begin:
		case <-ctx.Done():
		}
		if l.lost.Load() {
			return errors.New("the connection is lost")
		}
	}
	return l.Ledger.Check(ctx)
}

// Whatever ends a session, forwarded messages are acked before, and are not forwarded again.
func TestASessionThatFailsAcksForwardedMessages(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	s.StageSingly()
	const messages = 200
	ledger := &failing{Ledger: s.Ledger, open: uuid.New(), settled: make(chan struct{}), fail: make(chan struct{})}
	s.Ledger = ledger
	v := s.Verify(verifier.Options{Prefetch: 2 * messages})
	held := stage.To(queue, "open")
	held.ID = ledger.open
	open, _ := s.Begin(held)
	servertest.Next(t, "the open one is settled", ledger.settled)
	ledger.hangs.Store(true)
	goodBatch(s, queue, messages)
	s.WaitDepth(queue, messages)
	close(ledger.fail)
	s.Eventually("the session has ended", func() bool { return v.Stats().Sessions > 1 })
	ledger.hangs.Store(false)
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	s.WaitDepth(queue, messages+1)
	s.Eventually("all rows are deleted", func() bool { return s.Rows() == 0 })
	if n := v.Stats(); n.Forwarded != messages+1 || n.Dropped != 0 {
		t.Errorf("stats %+v: %d must be forwarded, none twice", n, messages+1)
	}
}

// failing deletes nothing while it hangs, and fails to settle one ID once.
type failing struct {
	driver.Ledger
	hangs         atomic.Bool
	open          uuid.UUID
	settled, fail chan struct{}
	begun, failed sync.Once
}

func (l *failing) Forget(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	if l.hangs.Load() && len(ids) > 1 { // the proof forgets one
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return l.Ledger.Forget(ctx, ids)
}

func (l *failing) Settle(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, driver.Instance, error) {
	if id == l.open {
		l.begun.Do(func() { close(l.settled) })
		select {
		case <-l.fail:
			var err error
			l.failed.Do(func() { err = errors.New("the connection is gone") })
			if err != nil {
				return driver.StillOpen, "", err
			}
		case <-time.After(wait):
		}
	}
	return l.Ledger.Settle(ctx, id, wait)
}
