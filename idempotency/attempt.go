package idempotency

import (
	"fmt"
	"runtime/debug"
)

// A handlerError is a failed attempt that counts. Every other error of an
// attempt is the database's.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }
func (e *handlerError) Unwrap() error { return e.err }

// A lostError is that of an attempt whose connection was dead after the handler had run.
type lostError struct{ err error }

func (e *lostError) Error() string { return e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// contain runs f and turns a panic into an error, with its stack in the log.
func (g *Guard) contain(what, key string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
			g.log.Error(what+" panicked", "message_id", key, "error", err, "stack", string(debug.Stack()))
		}
	}()
	return f()
}
