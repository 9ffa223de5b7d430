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
	// regrowth is the time without a refusal after which one more settler may wait, again and again.
	regrowth = 5 * time.Second
)

// connections divides the open database connections while the server opens no more
// (driver.ErrNoConnection). Every message depends on the lookup, so the lookup comes before the
// settlers: while it waits for a connection no settle begins, and after each refusal one settler
// fewer may wait at a time.
type connections struct {
	log *slog.Logger
	all int // settlers

	mu       sync.Mutex
	most     int       // settlers that may be at work at a time
	settling int       // settlers that are at work
	looking  bool      // the lookup waits for a connection
	refused  time.Time // when the server last refused one; zero: there are enough
	freed    chan struct{}
}

func newConnections(log *slog.Logger, settlers int) *connections {
	return &connections{log: log, all: settlers, most: settlers, freed: make(chan struct{}, 1)}
}

// begin waits until another settler may start. It returns false when ctx ends.
func (c *connections) begin(ctx context.Context) bool {
	for !c.takes(time.Now()) {
		select {
		case <-c.freed:
		case <-time.After(refusedLongest): // the limit may have grown
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (c *connections) takes(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.refused.IsZero() && now.Sub(c.refused) >= regrowth {
		if c.refused, c.most = now, c.most+1; c.most >= c.all {
			c.refused, c.most = time.Time{}, c.all
			c.log.Info("database has connections for all lookups again")
		}
	}
	if c.settling >= c.most {
		return false
	}
	if c.settling++; c.settling < c.most {
		pipe.Wake(c.freed) // for the next settler
	}
	return true
}

// release releases the place that begin took.
func (c *connections) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settling--
	pipe.Wake(c.freed)
}

// yield waits while the lookup waits for a connection.
func (c *connections) yield(ctx context.Context) {
	for ctx.Err() == nil && c.isLooking() {
		pipe.Pause(ctx, refusedFirst)
	}
}

// refuses reports whether err means that the server opens no further connection, and lowers the
// limit of settlers if so. settling is the number of settlers that wait in the database now.
func (c *connections) refuses(err error, settling int) bool {
	if !errors.Is(err, driver.ErrNoConnection) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused.IsZero() {
		c.log.Warn("database refuses further connections; using the open ones", "error", err)
	}
	c.refused = time.Now()
	c.most = max(1, min(c.most, settling)-1)
	return true
}

// look runs a lookup, and repeats it for patience while the server has no connection for it. After
// that the lookup fails: this verifier has no connection left, but another one may, so the messages
// held here must go back.
func (c *connections) look(ctx context.Context, settling *atomic.Int64, patience time.Duration, lookup func() error) error {
	wait, began := pipe.NewBackOff(refusedFirst, refusedLongest), time.Now()
	defer c.looks(false)
	for {
		err := lookup()
		if !c.refuses(err, int(settling.Load())) || time.Since(began) >= patience {
			return err
		}
		c.looks(true)
		pipe.Pause(ctx, wait.NextBackOff())
		if ctx.Err() != nil {
			return err
		}
	}
}

func (c *connections) looks(waits bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looking = waits
}

func (c *connections) isLooking() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.looking
}
