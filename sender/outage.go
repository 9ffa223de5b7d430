package sender

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

const (
	// outAfter is how long a publication may wait for its confirm before the broker counts as out. The
	// publication itself goes on waiting. Each byte adds outAfterByte, as on a line of 10 MB/s.
	outAfter     = time.Second
	outAfterByte = 100 * time.Nanosecond
	// carryProbe is the time between two messages that are published during an outage to find its end,
	// and the longest pause between two attempts to publish a carried message.
	carryProbe = time.Second
)

// An outage records whether the broker fails. All publications report to it, and all transactions
// query it, unless no message is carried.
//
// The broker is out if the last publication failed for a reason that time repairs: the broker is
// unavailable, blocks, has no room, or does not confirm. Any other reason, such as a missing queue,
// only stops the publication of carried messages: their rows suffice, and other transactions should
// get the error. The refusal of one message shows nothing about others.
type outage struct {
	queue   string
	logger  *slog.Logger
	explain func(error) error // adds the fix
	quiet   bool              // no message is carried, so the log gets nothing

	mu        sync.Mutex
	failure   error         // of the last publication; nil: it was confirmed
	since     time.Time     // when failures last began or ended
	probe     time.Time     // when the next message is published in spite of failure
	outSignal chan struct{} // closed when the broker is out; nil if no Flush waits
}

// errSlow is the failure of a publication that is still waiting.
var errSlow = fmt.Errorf("%w within %v", bridge.ErrUnconfirmed, outAfter)

// isOutage reports whether time repairs a failure, so that another transaction should not wait for
// the broker.
func isOutage(failure error) bool {
	return bridge.Retryable(failure) && bridge.Refusal(failure) == nil
}

// refusesMessage reports whether the broker has refused a message for its content: it is too large.
func refusesMessage(failure error) bool {
	refusal := bridge.Refusal(failure)
	return refusal != nil && refusal.Code == amqp.PreconditionFailed
}

// watch must be called before each publication with its size, and the returned function after it. A
// publication that takes too long counts as failed until it has ended. If it ends by its caller's
// cancellation, or by a refusal that does not count, it counts as failed until another one is confirmed.
func (o *outage) watch(bytes int) (ended func(failure error, carried bool)) {
	over := false // guarded by mu
	slow := time.AfterFunc(outAfter+time.Duration(bytes)*outAfterByte, func() {
		o.note(errSlow, func() bool { return !over })
	})
	return func(failure error, carried bool) {
		slow.Stop()
		o.note(failure, func() bool {
			over = true
			return failure == nil || isOutage(failure) || carried && !refusesMessage(failure)
		})
	}
}

// note stores the failure of a publication, or nil, if counts returns true, and logs the beginning
// and the end of failures. It calls counts with mu held.
func (o *outage) note(failure error, counts func() bool) {
	o.mu.Lock()
	if !counts() {
		o.mu.Unlock()
		return
	}
	before := o.failure
	o.failure = failure
	if (before == nil) != (failure == nil) {
		o.since = time.Now()
	}
	if o.outSignal != nil && isOutage(failure) {
		close(o.outSignal)
		o.outSignal = nil
	}
	if failure != nil {
		o.probe = time.Now().Add(carryProbe)
	}
	o.mu.Unlock()
	switch {
	case o.quiet:
	case failure != nil && before == nil:
		o.logger.Warn("messages are not published; their rows carry them, and verifiers stage them", "queue", o.queue, "error", o.explain(failure))
	case failure == nil && before != nil:
		o.logger.Info("messages are published again", "queue", o.queue)
	}
}

// noteBlocked notes that the broker blocks, with its reason; "" means that it does not.
func (o *outage) noteBlocked(reason string) {
	if reason != "" {
		o.note(fmt.Errorf("%w: %s", bridge.ErrBlocked, reason), func() bool { return true })
	}
}

// fails reports whether the last publication failed.
func (o *outage) fails() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failure != nil
}

// state returns when publications began to fail or to succeed, and the failure of the last one.
func (o *outage) state() (since time.Time, failure error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.since, o.failure
}

// out reports whether the broker is known to be out.
func (o *outage) out() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return isOutage(o.failure)
}

// cause returns the failure of the last publication, or nil.
func (o *outage) cause() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failure
}

// slow reports whether the broker counts as out only because a confirm is late.
func (o *outage) slow() bool { return o.cause() == errSlow }

// whenOut returns a channel that is closed when the broker is known to be out.
func (o *outage) whenOut() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if isOutage(o.failure) {
		out := make(chan struct{})
		close(out)
		return out
	}
	if o.outSignal == nil {
		o.outSignal = make(chan struct{})
	}
	return o.outSignal
}

// holdsBack reports whether a message is not to be published now. During a failure it returns false
// once in carryProbe, and the caller must publish.
func (o *outage) holdsBack() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failure != nil && !o.takeProbe()
}

// holdsBackOrdered is holdsBack for messages with an order key. If it returns true their
// transaction fails.
func (o *outage) holdsBackOrdered() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.concernsOrdered() && !o.takeProbe()
}

// concernsOrdered reports whether the failure is an outage for messages with an order key too. They
// have separate queues, so a full staging queue does not count. A slow confirm does not either,
// since it may still come. The caller holds mu.
func (o *outage) concernsOrdered() bool {
	return isOutage(o.failure) && !errors.Is(o.failure, bridge.ErrNacked) && o.failure != errSlow
}

// takeProbe reports whether it is time for the next attempt to find the end of a failure. If so, the
// caller must make it. The caller holds mu.
func (o *outage) takeProbe() bool {
	if time.Now().Before(o.probe) {
		return false
	}
	o.probe = time.Now().Add(carryProbe)
	return true
}

// orderedConfirmed notes that messages with an order key are confirmed, which ends an outage. Their
// failure begins none: it may be due to their own queue.
func (o *outage) orderedConfirmed() { o.note(nil, o.concernsOrdered) }
