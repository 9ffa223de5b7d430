package engine

import (
	"errors"

	"github.com/cenkalti/backoff/v5"
)

// A handlerError is a failed attempt that counts. Every other error of an
// attempt is the database's.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }
func (e *handlerError) Unwrap() error { return e.err }

// Failure makes err one of an attempt that counts, if Counts says so.
func Failure(err error) error { return &handlerError{err} }

// IsFailure tells whether the handler has made the attempt fail.
func IsFailure(err error) bool { return errors.As(err, new(*handlerError)) }

// A lostError is that of an attempt whose connection was dead after the handler had run.
type lostError struct{ err error }

func (e *lostError) Error() string { return e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// IsLost tells whether the connection was dead after the handler had run.
func IsLost(err error) bool { return errors.As(err, new(*lostError)) }

// A refusal is an error that no further attempt can change: the message is dead-lettered.
type refusal struct{ err error }

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// Refusal makes err one that no further attempt can change.
func Refusal(err error) error { return &refusal{err} }

// IsRefusal tells whether no further attempt can change err.
func IsRefusal(err error) bool { return errors.As(err, new(*refusal)) }

// Permanent tells whether a handler says that no retry can help.
func Permanent(err error) bool { return errors.As(err, new(*backoff.PermanentError)) }
