package verifier_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// Rule 12 of package bridge: whatever happens to the side jobs, messages flow, in one session.
// All side jobs fail and are tried again, and the log reports each once.
func TestMessagesDependOnNoSideJob(t *testing.T) {
	t.Parallel()
	for way, fail := range map[string]func(context.Context) error{
		"no right": func(context.Context) error { return errors.New("permission denied") },
		"panic":    func(context.Context) error { panic("a side job's own fault") },
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, stage.Postgres)
			queue := s.Queue("target", nil)
			faulty := &faultyJobs{Ledger: s.Ledger.(*postgres.Ledger), fail: fail}
			s.Ledger = faulty
			var log servertest.Log
			options := verifier.Options{Watcher: faulty, ExplainAfter: 50 * time.Millisecond, Unroutable: stage.Patience, Logger: slog.New(slog.NewTextHandler(&log, nil))}
			// How often each job fails within the test. A sweep runs every ten minutes.
			failures := map[string]int{"stage": 2, "touch": 2, "sweep": 1, "explain": 3}
			if way == "panic" {
				options.Observer = faulty // it returns no errors, and must not block
				failures["observe"] = 10
			}
			v := s.Verify(options)
			s.Eventually("the queues have been empty, for a sweep", func() bool { return faulty.calls("sweep") > 0 })
			open, _ := s.Begin(stage.To(queue, "open")) // something to explain
			expectAll(t, s, queue, goodBatch(s, queue, 10))
			usual := s.Sender
			carrying(s)
			held := map[string]bool{} // something to touch
			add(held, s.Commit(stage.To("missing", "held"))...)
			s.Sender = usual
			s.Eventually("it is set aside", func() bool { return v.Stats().SetAside > 0 })
			for job, n := range failures {
				s.Eventually(job+" has failed", func() bool { return faulty.calls(job) >= n })
			}
			expectAll(t, s, queue, goodBatch(s, queue, 10))
			expectAll(t, s, s.Queue("missing", nil), held)
			if err := open.Rollback(); err != nil {
				t.Fatal(err)
			}
			s.Eventually("all is judged", func() bool { return s.Rows() == 0 && v.Stats().Dropped == 1 })
			if n := v.Stats().Sessions; n != 1 {
				t.Errorf("%d sessions", n)
			}
			v.Stop()
			for job := range failures {
				if said := log.With("job=" + job); len(said) != 1 {
					t.Errorf("the log says of %s: %q", job, said)
				}
			}
		})
	}
}

// Rule 12 of package bridge, with a driver that ignores the contexts of the side jobs' calls:
// messages flow, sessions end, and one call of each job hangs, however many sessions there are.
func TestASideJobThatHangsHoldsNoSessionUp(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	valve, address := servertest.Through(t, s.AMQP)
	release := make(chan struct{})
	defer close(release)
	hung := &faultyJobs{Ledger: s.Ledger.(*postgres.Ledger), fail: func(context.Context) error { <-release; return errors.New("released") }}
	usual := s.Broker
	s.Ledger, s.Broker = hung, dial(t, address)
	v := s.Verify(verifier.Options{Unroutable: stage.Patience, Watcher: hung, ExplainAfter: 50 * time.Millisecond})
	s.Broker = usual
	s.Eventually("the queues have been empty, for a sweep", func() bool { return hung.calls("sweep") > 0 })
	open, _ := s.Begin(stage.To(queue, "open")) // something to explain
	defer func() { _ = open.Rollback() }()
	s.Eventually("the holder of a message is asked for", func() bool { return hung.calls("explain") > 0 })
	carrying(s)
	held := s.Commit(stage.To("missing", "held")) // something to touch
	ids := map[string]bool{}
	for range 3 {
		s.Eventually("a message is set aside without a touch", func() bool { return v.Stats().SetAside > 0 && hung.calls("touch") > 0 && hung.calls("stage") > 0 })
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
	for _, job := range []string{"stage", "touch", "sweep", "explain"} {
		if n := hung.calls(job); n != 1 {
			t.Errorf("%d calls of the job %s hang", n, job)
		}
	}
}

// faultyJobs is a ledger, a Watcher and an Observer that fails at each side job.
type faultyJobs struct {
	*postgres.Ledger
	fail func(context.Context) error

	mu    sync.Mutex
	begun map[string]int // calls, by side job
}

func (f *faultyJobs) failing(ctx context.Context, job string) error {
	f.mu.Lock()
	if f.begun == nil {
		f.begun = make(map[string]int)
	}
	f.begun[job]++
	f.mu.Unlock()
	return f.fail(ctx)
}

func (f *faultyJobs) calls(job string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.begun[job]
}

func (f *faultyJobs) Due(ctx context.Context, _ driver.DueRow, _ int) ([]driver.DueRow, time.Time, error) {
	return nil, time.Time{}, f.failing(ctx, "stage")
}

func (f *faultyJobs) Touch(ctx context.Context, _ []uuid.UUID) error {
	return f.failing(ctx, "touch")
}

func (f *faultyJobs) Sweep(ctx context.Context, _ time.Duration, _ int) ([]driver.Orphan, error) {
	return nil, f.failing(ctx, "sweep")
}

func (f *faultyJobs) Holders(ctx context.Context, _ uuid.UUID) ([]inspect.Holder, error) {
	return nil, f.failing(ctx, "explain")
}

func (*faultyJobs) OpenTransactions(context.Context, time.Duration, int) ([]inspect.Holder, error) {
	return nil, nil
}

func (f *faultyJobs) Done(verifier.Event) { _ = f.failing(context.Background(), "observe") }

func (f *faultyJobs) SessionEnded(error) {}
