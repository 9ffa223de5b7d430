package verifier_test

import (
	"context"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// logSignal reports that a message was logged.
type logSignal struct {
	slog.Handler
	message string
	logged  chan<- struct{}
}

func (h logSignal) Enabled(context.Context, slog.Level) bool { return true }

func (h logSignal) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, h.message) {
		select {
		case h.logged <- struct{}{}:
		default:
		}
	}
	return h.Handler.Handle(ctx, r)
}

// Memory is bounded in bytes too. Of one transaction's large messages, far fewer than the
// prefetch allows, a verifier keeps no more than MaxBytes, and other messages pass. (Package
// consume's tests bound messages that are large by their headers.) This test does not run beside
// others, since tests share the heap.
func TestBytesAreBounded(t *testing.T) {
	s := stage.New(t, stage.Postgres)
	s.StageSingly()
	large, queue := s.Queue("large", nil), s.Queue("target", nil)
	const n, most = 80, 2 << 20
	body := make([]byte, 384<<10)
	messages := some(large, n)
	for i := range messages {
		messages[i].Publishing.Body = body
	}
	open, ids := s.Begin(messages...)
	before := heap()
	v := s.Verify(verifier.Options{MaxBytes: most, Patience: 200 * time.Millisecond})
	held, grown := 0, 0
	look := func() {
		held, grown = max(held, v.State().Bytes), max(grown, heap()-before)
	}
	s.Eventually("all large messages have been set aside", func() bool {
		look()
		return v.Stats().SetAside >= int64(n)
	})
	expectAll(t, s, queue, goodBatch(s, queue, 100))
	look()
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	add(want, ids...)
	expectAll(t, s, large, want)
	s.Eventually("the ledger is empty", func() bool { look(); return s.Rows() == 0 })
	t.Logf("held %d bytes at most, of %d; the heap grew by %d", held, most, grown)
	if held > 2*most { // a group in the waiting queue may be larger than this queue's share
		t.Errorf("%d bytes were held, of %d at most", held, most)
	}
	if grown > 10*most {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	if n := v.Stats(); n.Sessions != 1 || n.DeadLettered+n.Dropped != 0 {
		t.Errorf("stats %+v", n)
	}
}

// heap returns the bytes that stay alive. Memory allocated during a collection counts as alive
// until the next one, even if it is no longer used.
func heap() int {
	least := math.MaxInt
	for range 3 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		least = min(least, int(m.HeapAlloc))
	}
	return least
}
