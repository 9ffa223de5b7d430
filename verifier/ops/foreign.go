package ops

import (
	"fmt"
	"sync"
	"time"

	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier"
)

const (
	// foreignWindow and foreignMost say when messages of another ledger are a stream: senders
	// of another database share the staging queue, or the verifier has the wrong database. A
	// few may be left from before a database was made anew.
	foreignWindow = 5 * time.Minute
	foreignMost   = 10
)

// foreigners watches for messages of other ledgers.
type foreigners struct {
	mu   sync.Mutex
	last [foreignMost]time.Time // the times of the last ones, in turn
	next int
}

func (f *foreigners) done(e verifier.Event) {
	if e.Reason != wire.DeadForeign {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last[f.next] = e.Done
	f.next = (f.next + 1) % foreignMost
}

// stream returns a warning while messages of another ledger keep coming, else "".
func (f *foreigners) stream(now time.Time) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if oldest := f.last[f.next]; oldest.IsZero() || now.Sub(oldest) > foreignWindow {
		return ""
	}
	return fmt.Sprintf("ledger: %d or more messages of another database's ledger came within %v and went to the dead queue; give each database a staging queue of its own", foreignMost, foreignWindow)
}
