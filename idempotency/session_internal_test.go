package idempotency

import (
	"context"

	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// InSessionOfOneWorker returns a context like a handler's in a Consumer with one worker.
func InSessionOfOneWorker(ctx context.Context) context.Context {
	return engine.WithSession(ctx, &engine.Session{Ordered: true, OneByOne: true, Stopping: ctx})
}
