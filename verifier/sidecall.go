package verifier

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// A sideCall lets the calls of a side job to the database run one at a time. A driver may ignore the
// context of a call, so each runs in a goroutine of its own, and no session waits for it beyond its
// time. It is the verifier's: while a call of an earlier session hangs, no other begins, so they
// never keep more than one connection.
type sideCall chan struct{} // holds an element for each call that runs

func newSideCall() sideCall { return make(sideCall, 1) }

// sideCallTurn is how long a call waits for the one before it.
const sideCallTurn = time.Second

// errNoAnswer: the database has not answered in time, or not to the call before.
var errNoAnswer = errors.New("the database has not answered in time")

// inTime returns the result of a call, or an error after patience. The context of the call ends
// after patience, but not before ledgerTimeout, or with ctx.
func inTime[T any](ctx context.Context, running sideCall, patience time.Duration, call func(context.Context) (T, error)) (none T, err error) {
	late, turn := time.NewTimer(patience), time.NewTimer(min(patience, sideCallTurn))
	defer late.Stop()
	defer turn.Stop()
	select {
	case running <- struct{}{}:
	case <-turn.C:
		return none, errNoAnswer
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
		asking, cancel := context.WithTimeout(ctx, max(patience, ledgerTimeout))
		defer cancel()
		value, err := call(asking)
		ended <- result{value, err}
	}()
	select {
	case r := <-ended:
		return r.value, r.err
	case <-late.C:
		return none, errNoAnswer
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}
