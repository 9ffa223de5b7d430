package idempotency

import (
	"context"

	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// InSessionOfOneWorker returns a context as the handlers of a Consumer with one worker have it.
func InSessionOfOneWorker(ctx context.Context) context.Context {
	return engine.WithSession(ctx, &engine.Session{Ordered: true, OneByOne: true, Stopping: ctx})
}
