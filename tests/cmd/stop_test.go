package cmd_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// load is the traffic of several shops, until stop is called.
type load struct {
	stop func()

	mu        sync.Mutex
	committed []uuid.UUID // of the messages that must arrive
	failed    error
}

// begin opens shops. Each runs one transaction after the other and rolls every fifth back.
func begin(s *stage.Stage, target string, shops int) *load {
	l := new(load)
	ctx, cancel := context.WithCancel(context.Background())
	var open sync.WaitGroup
	for range shops {
		open.Go(func() {
			for n := 1; ctx.Err() == nil; n++ {
				l.place(s, target, n%5 == 0)
			}
		})
	}
	l.stop = func() {
		cancel()
		open.Wait()
	}
	return l
}

var errRefused = errors.New("the shop thinks better of it")

func (l *load) place(s *stage.Stage, target string, refused bool) {
	var ids []uuid.UUID
	err := s.Sender.InTx(context.Background(), s.DB, nil, func(tx *sender.Tx) (err error) {
		ids, err = tx.Send(stage.To(target, "1"), stage.To(target, "2"))
		if err == nil && refused {
			err = errRefused
		}
		return err
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.committed = append(l.committed, ids...)
	case !errors.Is(err, errRefused):
		l.failed = errors.Join(l.failed, err)
	}
}

// placed returns the number of messages that must arrive so far.
func (l *load) placed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.committed)
}

// A verifier that is stopped while it forwards loses no message. It also leaves its successor no
// forwarded message: none reaches its target twice.
func TestSIGTERMUnderLoadLosesNothingAndDoublesNothing(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	target := s.Queue("target", nil)
	p := verify(t, s, "BRIDGE_DRAIN=1m")
	l := begin(s, target, 8)
	defer l.stop()
	// The message of an open transaction cannot be forwarded: the verifier hands it back.
	open, late := s.Begin(stage.To(target, "late"))
	const enough = 500
	s.Eventually("the worker is in the middle of it", func() bool { return s.Depth(target) >= enough })
	code, byFirst := p.Stop(), s.Depth(target)
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	before := l.placed()
	s.Eventually("the shops go on without it", func() bool { return l.placed() > before+enough/10 })
	l.stop()
	if l.failed != nil {
		t.Fatal(l.failed)
	}
	must(t, open.Commit())
	want := append(l.committed, late...)

	p = verify(t, s)
	s.Eventually("the ledger is empty", func() bool { return s.Rows() == 0 })
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d of the second", code)
	}
	s.WantOnce(target, want...)
	if n := s.Depth(s.Topology.DeadQueue()); n != 0 {
		t.Errorf("%d messages are dead", n)
	}
	t.Logf("%d messages, %d of them by the first worker", len(want), byFirst)
}
