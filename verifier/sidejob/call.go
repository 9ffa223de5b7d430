package sidejob

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// Calls bounds the calls to the database that run at the same time. A driver may ignore the context
// of a call, so InTime runs each call in a new goroutine, and its caller waits only for a limited
// time. While as many calls as allowed hang, no other begins, so hanging calls never use more
// connections.
type Calls chan struct{} // holds an element for each call that runs

// NewCalls allows n calls at a time, at least 1.
func NewCalls(n int) Calls { return make(Calls, n) }

// turnPatience is how long a call waits for a running one to end, if as many run as allowed.
const turnPatience = time.Second

// ErrNoAnswer: the database has not answered in time, or still runs the previous call.
var ErrNoAnswer = errors.New("the database has not answered in time")

// InTime returns the result of a call, or ErrNoAnswer after patience, or after a second in which no
// running call has ended. The context of the call ends after limit, or with ctx. A panic in the
// call becomes an error.
func InTime[T any](ctx context.Context, running Calls, patience, limit time.Duration, call func(context.Context) (T, error)) (none T, err error) {
	late, turn := time.NewTimer(patience), time.NewTimer(min(patience, turnPatience))
	defer late.Stop()
	defer turn.Stop()
	select {
	case running <- struct{}{}:
	case <-turn.C:
		return none, ErrNoAnswer
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
	type result struct {
		value T
		err   error
	}
	ended := make(chan result, 1)
	go func() {
		defer func() { <-running }()
		defer func() {
			if reason := recover(); reason != nil {
				ended <- result{err: fmt.Errorf("panic: %v\n%s", reason, debug.Stack())}
			}
		}()
		asking, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		value, err := call(asking)
		ended <- result{value, err}
	}()
	select {
	case r := <-ended:
		return r.value, r.err
	case <-late.C:
		return none, ErrNoAnswer
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}
