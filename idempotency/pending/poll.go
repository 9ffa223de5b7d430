package pending

import (
	"context"
	"time"

	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// poll calls one until ctx ends, then returns nil. While one finds no work, it is called every
// Options.Poll, or when this process adds work; after an error, with growing pauses.
func (g *messages) poll(ctx context.Context, one func(ctx context.Context) (found bool, err error)) error {
	delays := g.keys.Opts.ShortDelays()
	for ctx.Err() == nil {
		found, err := one(ctx)
		if err == nil {
			delays.Reset()
			if !found {
				g.await(ctx)
			}
			continue
		}
		if ctx.Err() != nil {
			break
		}
		delay := delays.NextBackOff()
		g.keys.Log.Warn("cannot process pending messages; retrying", "retry_in", delay, "error", err)
		engine.Pause(ctx, delay)
	}
	return nil
}

// await waits for work that this process adds, but no longer than Options.Poll.
func (g *messages) await(ctx context.Context) {
	timer := time.NewTimer(g.every)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-g.added:
	case <-ctx.Done():
	}
}

// signal wakes one call of await.
func (g *messages) signal() {
	select {
	case g.added <- struct{}{}:
	default:
	}
}
