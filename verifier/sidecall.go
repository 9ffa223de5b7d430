package verifier

import (
	"context"
	"sync"
	"time"

	"github.com/twoqueue/twoqueue/verifier/sidejob"
)

// ledgerTimeout bounds the database's answer, without the time of waiting for a transaction. After
// it the connection counts as dead. If a message waits for the answer, the session ends.
const ledgerTimeout = 30 * time.Second

// A sideCall lets the database calls of a side job run one at a time. The verifier owns it, so
// while a call of an earlier session hangs, no other begins.
type sideCall = sidejob.Calls

func newSideCall() sideCall { return sidejob.NewCalls(1) }

// errNoAnswer: the database has not answered in time, or still runs the previous call.
var errNoAnswer = sidejob.ErrNoAnswer

// inTime is sidejob.InTime for a call whose context ends after patience, but not before
// ledgerTimeout.
func inTime[T any](ctx context.Context, running sideCall, patience time.Duration, call func(context.Context) (T, error)) (T, error) {
	return sidejob.InTime(ctx, running, patience, max(patience, ledgerTimeout), call)
}

// lastError is the error of the last statement of a kind.
type lastError struct {
	mu  sync.Mutex
	err error
}

// failed stores and returns the error of a statement; nil means that it succeeded.
func (l *lastError) failed(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	return err
}

// failure returns why the statements fail, or nil.
func (l *lastError) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}
