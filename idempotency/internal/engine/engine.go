// Package engine is the common part of packages idempotency, idempotency/pending and
// idempotency/versions. An Engine makes attempts at a delivery until one of them ends it, and tells
// the broker. A Keys is an Engine that claims keys in an inbox. The strategies define a single
// attempt.
package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"unicode/utf8"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// maxKey is the longest consumer name and key, in bytes: the limit of a message ID in AMQP, and of
// the inbox.
const maxKey = 255

// An Engine makes attempts at deliveries for one consumer. It is safe for concurrent use, and
// starts no goroutines. In memory it keeps its counters and, of messages that are not done, the failed
// attempts of up to 10,000, and the lost connections and deadlocks of up to 10,000.
type Engine struct {
	Consumer string
	Opts     Options // filled and checked
	Log      *slog.Logger
	Count    Counters

	InOrder bool // closes the channel instead of requeueing, because a requeued message could be overtaken
	InPlace bool // uses no retry queues

	// ErrHeldTooLong is the cause of a context that the option Hold has ended.
	ErrHeldTooLong error

	optionsName string
	txs         driver.Transactions
	failures    failures
}

// New returns an Engine. Its error names the wrong argument or option; optionsName is the name of
// the type that has the options.
func New(txs driver.Transactions, consumer, optionsName string, opts Options) (*Engine, error) {
	if err := CheckKey(consumer); err != nil {
		return nil, fmt.Errorf("consumer name %w", err)
	}
	opts.fill()
	if err := opts.validate(optionsName); err != nil {
		return nil, err
	}
	e := &Engine{Consumer: consumer, Opts: opts, Log: opts.Logger.With("consumer", consumer), optionsName: optionsName, txs: txs}
	e.ErrHeldTooLong = fmt.Errorf("delivery held for longer than %s", e.Option("Hold"))
	return e, nil
}

// Option returns the name of an option, for errors and the log.
func (e *Engine) Option(field string) string { return e.optionsName + "." + field }

// CheckKey returns an error if s cannot be a key in every inbox.
func CheckKey(s string) error {
	switch {
	case s == "":
		return errors.New("is empty")
	case len(s) > maxKey:
		return fmt.Errorf("is %d bytes long, more than %d", len(s), maxKey)
	case !utf8.ValidString(s):
		return errors.New("is not UTF-8")
	case strings.ContainsRune(s, 0):
		return errors.New("contains a NUL byte")
	}
	return nil
}

// RecoverPanic runs f and turns a panic into an error, with its stack in the log.
func (e *Engine) RecoverPanic(what, key string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
			e.Log.Error(what+" panicked", "message_id", key, "error", err, "stack", string(debug.Stack()))
		}
	}()
	return f()
}

// Run runs a handler. Its error is a Failure.
func (e *Engine) Run(key string, fn func() error) error {
	if err := e.RecoverPanic("handler", key, fn); err != nil {
		return Failure(fmt.Errorf("run handler: %w", err))
	}
	return nil
}
