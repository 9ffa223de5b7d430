package engine

import "context"

type attemptKey struct{}

type attemptNumber struct {
	number int
	last   bool
}

// WithAttempt returns the context of an attempt.
func WithAttempt(ctx context.Context, number int, last bool) context.Context {
	return context.WithValue(ctx, attemptKey{}, attemptNumber{number, last})
}

// Attempt is idempotency.Attempt.
func Attempt(ctx context.Context) (number int, last bool) {
	a, _ := ctx.Value(attemptKey{}).(attemptNumber)
	return a.number, a.last
}
