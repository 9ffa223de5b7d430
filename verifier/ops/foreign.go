package ops

import (
	"fmt"
	"sync"
	"time"

	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier"
)

const (
	// foreignMost messages of other ledgers within foreignWindow count as a stream: senders of another
	// database share the staging queue, or the verifier has the wrong database. Fewer may be left over
	// from before the database was created again.
	foreignWindow = 5 * time.Minute
	foreignMost   = 10
)

// foreignMessages watches for messages of other ledgers.
type foreignMessages struct {
	mu   sync.Mutex
	last [foreignMost]time.Time // the times of the last ones, used in turn
	next int
}

func (f *foreignMessages) done(e verifier.Event) {
	if e.Reason != wire.DeadForeign {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last[f.next] = e.Done
	f.next = (f.next + 1) % foreignMost
}

// stream returns a warning while messages of another ledger keep coming, else "".
func (f *foreignMessages) stream(now time.Time) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if oldest := f.last[f.next]; oldest.IsZero() || now.Sub(oldest) > foreignWindow {
		return ""
	}
	return fmt.Sprintf("ledger: %d or more messages of another database's ledger came within %v and went to the dead queue; give each database a staging queue of its own", foreignMost, foreignWindow)
}
