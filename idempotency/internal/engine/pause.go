package engine

import (
	"context"
	"math"
	"time"
)

// Pause waits, and reports whether it waited to the end.
func Pause(ctx context.Context, delay time.Duration) bool {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Outliving returns a context that ends a grace period after ctx.
func Outliving(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	end := func() { cancel(context.Cause(ctx)) }
	timer := time.AfterFunc(math.MaxInt64, end)
	stop := context.AfterFunc(ctx, func() { timer.Reset(grace) })
	return longer, func() {
		stop()
		timer.Stop()
		end()
	}
}

// Draining returns a context that ends Options.Drain after ctx.
func (e *Engine) Draining(ctx context.Context) (context.Context, context.CancelFunc) {
	if e.Opts.Drain < 0 {
		return ctx, func() {}
	}
	return Outliving(ctx, e.Opts.Drain)
}
