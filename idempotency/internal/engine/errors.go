package engine

import (
	"errors"

	"github.com/cenkalti/backoff/v5"
)

// A handlerError is an attempt that failed in the handler. Every other error of an attempt, except
// a refusal, is the database's.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }
func (e *handlerError) Unwrap() error { return e.err }

// Failure marks err as the handler's. The attempt then counts, if Counts returns true.
func Failure(err error) error { return &handlerError{err} }

// IsFailure reports whether the handler has made the attempt fail.
func IsFailure(err error) bool { return errors.As(err, new(*handlerError)) }

// A lostError is the error of an attempt whose connection was dead after the handler had run.
type lostError struct {
	err      error
	commit   bool // the answer to its COMMIT is lost, so the attempt may have succeeded
	answered bool // just afterwards the database answered on another connection
}

func (e *lostError) Error() string { return e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// IsLost reports whether the connection was dead after the handler had run.
func IsLost(err error) bool { return errors.As(err, new(*lostError)) }

// MayBeCommitted reports whether the answer to the attempt's COMMIT is lost.
func MayBeCommitted(err error) bool {
	lost := new(lostError)
	return errors.As(err, &lost) && lost.commit
}

// A refusal is an error that no further attempt can change: the message is dead-lettered.
type refusal struct{ err error }

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// Refusal marks err as one that no further attempt can change.
func Refusal(err error) error { return &refusal{err} }

// IsRefusal reports whether no further attempt can change err.
func IsRefusal(err error) bool { return errors.As(err, new(*refusal)) }

// Permanent reports whether the handler has marked err as one that no retry can change.
func Permanent(err error) bool { return errors.As(err, new(*backoff.PermanentError)) }
