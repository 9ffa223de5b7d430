package forward

import (
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// A Publication is a message to publish and its destination. The Forwarder owns it from Publish
// until it has ended or was removed.
type Publication struct {
	To         bridge.Target
	Publishing *amqp.Publishing
	ID         string // of the message, for the log
	Of         any    // the caller's own form of the publication
	// Once: the publication never waits for its target and is never retried. If the target does not
	// take it, it ends as Skipped.
	Once bool
	// Ordered: its message has an order key, so it keeps its place, and the messages of its key follow
	// one after the other.
	Ordered bool

	// Retries is nil unless the publication is the message itself to its target. Only then does the
	// forwarder give it up, and the fields below apply.
	Retries     *Retries
	Received    time.Time // by this verifier
	StagedAt    time.Time // zero: unknown
	Redelivered bool      // the broker delivered the message before

	trial bool // an attempt at a held target
	solo  bool // over a solo channel, because its target was silent
	slow  bool // the last answer took long (behindAfter)
}

// Retries is the history of a message at its target. It belongs to the message and outlives its
// publications. While a Forwarder owns such a publication, only the Forwarder uses its Retries.
type Retries struct {
	Attempts        int64     // failed attempts
	Nacks           int64     // how many of these an exchange has nacked: as many copies may have arrived
	NackedAt        time.Time // when the last of these was nacked
	UnroutableSince time.Time // when the message began to wait for its missing target; with an order key: when its key was last held for it (HoldKey)
}

// HoldKey restarts the retries of an ordered message that holds its key instead of being given up. One
// nack fewer leaves one more attempt, after the longest pause. At least one nack counts, because without
// one the attempt would not wait (heldTarget.exempts).
func (r *Retries) HoldKey(now time.Time) {
	r.UnroutableSince = now
	r.Nacks = max(1, r.Nacks-1)
}

// retryAt returns when a nacked message is published to its exchange again.
func (r *Retries) retryAt() time.Time { return r.NackedAt.Add(nackPause(r.Nacks)) }

// nackPause returns the pause after a number of nacks: 1 s, 3 s, 9 s and so on, at most 2 min.
func nackPause(nacks int64) time.Duration {
	const most = 2 * time.Minute
	pause := time.Second
	for range min(nacks-1, 10) {
		pause = min(3*pause, most)
	}
	return pause
}

// countsAsWaiting is 1 if the message may be set aside when too many wait, and 0 if it keeps its order.
func (p *Publication) countsAsWaiting() int {
	if p.Ordered {
		return 0
	}
	return 1
}

// A Result says how a publication ended. Until then the forwarder owns the publication and its
// messages.
type Result int

// The results. Of Refused, Expired and NackedOut the error has the reason.
const (
	Placed    Result = iota // the broker has it: confirmed and not returned
	Refused                 // the broker will never accept it in this form
	Expired                 // its target was missing for too long
	NackedOut               // its exchange has nacked it too often
	Skipped                 // it was to be published Once, and its target accepts nothing now
)

func errNackedOut(p *Publication) error {
	return fmt.Errorf("%s nacked it %d times: a queue behind the exchange is full; the exchange's other queues have up to as many copies", p.To, p.Retries.Nacks)
}

// errMissing says which target is missing.
func errMissing(to bridge.Target, why problem) error {
	if why == noQueue {
		return fmt.Errorf("%s does not exist", to)
	}
	return fmt.Errorf("%s: %s", to, why.text)
}
