package idempotency

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

// RetryLater marks the error of an attempt that failed for a reason which no message causes: a
// service that the handler needs is away, for example. The attempt does not count. The next one
// begins after a pause of this length; 0 means a pause that grows with each such attempt, to 10
// seconds or Options.MaxDelay if that is less. With Options.Queues the message waits in the first
// retry queue whose delay is at least as long, or else in the slowest; with 0, in a slower one each
// time. In place, the delivery is held meanwhile, so the pause ends with Options.Hold, and the message
// is handed back. For an effect of AtMostOnce,
// return NotDone(RetryLater(err, after)).
func RetryLater(err error, after time.Duration) error {
	if err == nil {
		err = errors.New("retry later")
	}
	return &laterError{err, after}
}

// counts tells whether an attempt that the handler has ended with err counts against the message.
// It does not if the broker or the database is to blame for it, or the deployment: then the other
// messages would fail too, and a queue would be emptied into the dead queue.
func (g *Guard) counts(err error) bool {
	if permanent(err) {
		return true
	}
	if errors.As(err, new(*laterError)) || g.marks.Transient(err) {
		return false
	}
	if refusal := bridge.Refusal(err); refusal != nil {
		// Anything else may be the fault of this message's reply: too large, for example.
		return refusal.Code != amqp.AccessRefused && refusal.Code != amqp.NotFound
	}
	for _, excuse := range []error{
		bridge.ErrUnavailable, bridge.ErrBlocked, bridge.ErrNacked, bridge.ErrUnconfirmed, bridge.ErrReturned, bridge.ErrCredentials,
		bridge.ErrCommitUnknown, bridge.ErrNotBegun, bridge.ErrNotPrimary, bridge.ErrReadOnly, bridge.ErrNoSchema, bridge.ErrOtherLedger,
		sqldriver.ErrBadConn, sql.ErrConnDone,
	} {
		if errors.Is(err, excuse) {
			return false
		}
	}
	return true
}

// after returns the pause before the next attempt, after one that does not count.
func after(err error, otherwise func() time.Duration) time.Duration {
	if later := new(laterError); errors.As(err, &later) && later.after > 0 {
		return later.after
	}
	return otherwise()
}
