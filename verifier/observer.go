package verifier

import (
	"time"

	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier/sidejob"
)

// An Observer gets the verifier's results, for metrics and traces. Several goroutines call its
// methods, and messages wait until they return: they must be quick and must not block. If one
// panics, the log reports it, and the messages go on.
type Observer interface {
	// Done is called for each message that the verifier has finished. After a crash or a lost
	// connection it is called again for messages that come again.
	Done(Event)
	// SessionEnded is called when a session has ended or could not start, with the reason. It is not
	// called for a session that ends because the context of Run has ended.
	SessionEnded(error)
}

// Observers calls its elements in order. If one panics, the later ones are not called.
type Observers []Observer

// Done implements Observer.
func (all Observers) Done(e Event) {
	for _, o := range all {
		o.Done(e)
	}
}

// SessionEnded implements Observer.
func (all Observers) SessionEnded(err error) {
	for _, o := range all {
		o.SessionEnded(err)
	}
}

// An Event is the result of one message. Times that do not apply are zero.
type Event struct {
	ID      string      // the message ID as it was delivered
	Message wire.Staged // its headers have the time of staging and the sender's trace context; zero if malformed
	Verdict Verdict
	Reason  string // of a dead letter, as in wire.HeaderDeadReason
	// Redelivered: the broker delivered it before, to a consumer that did not ack it.
	Redelivered bool

	Received time.Time // by this verifier
	Judged   time.Time // when the outcome of its transaction was known, or that it goes to the dead queue
	Safe     time.Time // when the broker had confirmed it at its target, or its copy in another queue
	Done     time.Time // when its row was deleted, or left to be deleted later, if it was to be; the ack comes next
}

// A Verdict is the end of a message in a verifier.
type Verdict string

// The verdicts.
const (
	Forwarded    Verdict = "forwarded"
	Dropped      Verdict = "dropped"
	DeadLettered Verdict = "dead_lettered"
	SetAside     Verdict = "set_aside" // not judged yet: moved to the waiting queue
)

// notify calls the observer for messages that are done.
func notify(observer Observer, job *sidejob.Job, messages []*message) {
	now := time.Now()
	for _, m := range messages {
		job.Do(func() {
			observer.Done(Event{
				ID: m.id(), Message: m.staged, Verdict: m.verdict, Reason: m.why.code, Redelivered: m.delivery.Redelivered,
				Received: m.received, Judged: m.judged, Safe: m.safe, Done: now,
			})
		})
	}
}
