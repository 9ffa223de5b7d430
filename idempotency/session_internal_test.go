package idempotency

import "context"

// InSessionOfOneWorker returns a context as the handlers of a Consumer with one worker have it.
func InSessionOfOneWorker(ctx context.Context) context.Context {
	return context.WithValue(ctx, sessionKey{}, &consumerSession{ordered: true, oneByOne: true, stopping: ctx, handling: ctx})
}
