package engine

import (
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

type laterError struct {
	err   error
	after time.Duration
}

func (e *laterError) Error() string { return e.err.Error() }
func (e *laterError) Unwrap() error { return e.err }

// IsLater reports whether err is an error of RetryLater.
func IsLater(err error) bool { return errors.As(err, new(*laterError)) }

// RetryLater is idempotency.RetryLater.
func RetryLater(err error, after time.Duration) error {
	if err == nil {
		err = errors.New("retry later")
	}
	return &laterError{err, after}
}

// Counts reports whether an attempt that the handler has ended with err counts against the message.
// It does not if the broker, the database or the deployment is to blame: then the other messages
// would fail too, and the whole queue would go to the dead queue.
func (e *Engine) Counts(err error) bool {
	if Permanent(err) {
		return true
	}
	if IsLater(err) || e.txs.Transient(err) || errors.Is(err, sqldriver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) {
		return false
	}
	return !excusedByBridge(err)
}

// excusedByBridge reports whether err is an error of package bridge for which the message is not
// the cause.
func excusedByBridge(err error) bool {
	if refusal := bridge.Refusal(err); refusal != nil {
		// Any other refusal may be due to this message's reply: too large, for example.
		return refusal.Code == amqp.AccessRefused || refusal.Code == amqp.NotFound
	}
	for _, excuse := range []error{
		bridge.ErrUnavailable, bridge.ErrBlocked, bridge.ErrNacked, bridge.ErrUnconfirmed, bridge.ErrReturned, bridge.ErrCredentials,
		bridge.ErrCommitUnknown, bridge.ErrNotBegun, bridge.ErrNotPrimary, bridge.ErrReadOnly, bridge.ErrNoSchema, bridge.ErrOtherLedger,
	} {
		if errors.Is(err, excuse) {
			return true
		}
	}
	return false
}

// after returns the pause after an attempt that does not count.
func after(err error, otherwise func() time.Duration) time.Duration {
	if later := new(laterError); errors.As(err, &later) && later.after > 0 {
		return later.after
	}
	return otherwise()
}
