package pending

import (
	"context"
	"time"

	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// poll calls one until ctx ends, then returns nil. While one finds no work, it is called every
// Options.Poll, or when this process adds work; after an error, with growing pauses.
func (m *messages) poll(ctx context.Context, one func(ctx context.Context) (found bool, err error)) error {
	delays := m.keys.Opts.ShortDelays()
	for ctx.Err() == nil {
		found, err := one(ctx)
		if err == nil {
			delays.Reset()
			if !found {
				m.await(ctx)
			}
			continue
		}
		if ctx.Err() != nil {
			break
		}
		delay := delays.NextBackOff()
		m.keys.Log.Warn("cannot process pending messages; retrying", "retry_in", delay, "error", err)
		engine.Pause(ctx, delay)
	}
	return nil
}

// await waits for work that this process adds, but no longer than Options.Poll.
func (m *messages) await(ctx context.Context) {
	timer := time.NewTimer(m.every)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-m.added:
	case <-ctx.Done():
	}
}

// signal wakes one call of await.
func (m *messages) signal() {
	select {
	case m.added <- struct{}{}:
	default:
	}
}
