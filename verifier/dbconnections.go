package verifier

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/verifier/internal/pipe"
)

const (
	// refusedFirst and refusedLongest bound the pause after the server has refused a connection.
	refusedFirst   = 20 * time.Millisecond
	refusedLongest = 2 * time.Second
	// regrowth is the time without a refusal after which one more settler may work.
	regrowth = 5 * time.Second
)

// dbConnections shares the open database connections between the lookup and the settlers while the
// server opens no more (driver.ErrNoConnection). Every message depends on the lookup, so while it
// waits for a connection no settle begins, and after each refusal one settler fewer may work.
type dbConnections struct {
	log      *slog.Logger
	settlers int // Options.Settlers

	lookupWaits atomic.Bool // for a connection

	mu      sync.Mutex
	limit   int           // settlers that may work at a time
	active  int           // settlers that work
	refused time.Time     // when the server last refused a connection; zero: there are enough
	freed   chan struct{} // woken when another settler may work
}

func newDBConnections(log *slog.Logger, settlers int) *dbConnections {
	return &dbConnections{log: log, settlers: settlers, limit: settlers, freed: make(chan struct{}, 1)}
}

// acquire waits until another settler may work. It returns false when ctx ends.
func (c *dbConnections) acquire(ctx context.Context) bool {
	for !c.tryAcquire(time.Now()) {
		select {
		case <-c.freed:
		case <-time.After(refusedLongest): // the limit may have grown
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (c *dbConnections) tryAcquire(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.refused.IsZero() && now.Sub(c.refused) >= regrowth {
		if c.refused, c.limit = now, c.limit+1; c.limit >= c.settlers {
			c.refused, c.limit = time.Time{}, c.settlers
			c.log.Info("database has connections for all lookups again")
		}
	}
	if c.active >= c.limit {
		return false
	}
	if c.active++; c.active < c.limit {
		pipe.Wake(c.freed) // for the next settler
	}
	return true
}

// release ends a settler's work, which acquire began.
func (c *dbConnections) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active--
	pipe.Wake(c.freed)
}

// yieldToLookup waits while the lookup waits for a connection.
func (c *dbConnections) yieldToLookup(ctx context.Context) {
	for ctx.Err() == nil && c.lookupWaits.Load() {
		pipe.Pause(ctx, refusedFirst)
	}
}

// noteRefusal reports whether err means that the server opens no further connection. If so, it lowers
// the limit of settlers. settling is the number of settlers that wait in the database now.
func (c *dbConnections) noteRefusal(err error, settling int) bool {
	if !errors.Is(err, driver.ErrNoConnection) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused.IsZero() {
		c.log.Warn("database refuses further connections; using the open ones", "error", err)
	}
	c.refused = time.Now()
	c.limit = max(1, min(c.limit, settling)-1)
	return true
}

// lookUp runs a lookup, and repeats it for patience while the server has no connection for it. Then
// the lookup fails, so that the session ends: another verifier may have a connection for the messages
// that are held here.
func (c *dbConnections) lookUp(ctx context.Context, settling *atomic.Int64, patience time.Duration, lookup func() error) error {
	wait, began := pipe.NewBackOff(refusedFirst, refusedLongest), time.Now()
	defer c.lookupWaits.Store(false)
	for {
		err := lookup()
		if !c.noteRefusal(err, int(settling.Load())) || time.Since(began) >= patience {
			return err
		}
		c.lookupWaits.Store(true)
		pipe.Pause(ctx, wait.NextBackOff())
		if ctx.Err() != nil {
			return err
		}
	}
}
