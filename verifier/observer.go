package verifier

import (
	"time"

	"github.com/twoqueue/twoqueue/bridge/wire"
)

// An Observer is told what a verifier does, for metrics and traces. Several goroutines call its
// methods, and messages wait until they return: they must be quick and must not block. If one
// panics, the log says so, and the messages go on.
type Observer interface {
	// Done is called for each message that the verifier has finished. After a crash or a lost
	// connection it is called again for messages that come again.
	Done(Event)
	// SessionEnded is called when a session has ended or could not start, with the reason. It
	// is not called at the end of Run.
	SessionEnded(error)
}

// Observers are told one after the other. If one panics, the next ones are not told.
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

// An Event is what a verifier has done with one message. Times that do not apply are
// zero.
type Event struct {
	ID      string      // the message ID as it was delivered
	Message wire.Staged // with the time of its staging and the sender's trace context in its headers; zero if malformed
	Verdict Verdict
	Reason  string // of a dead letter, as in wire.HeaderDeadReason
	// Redelivered: the broker has delivered it before, to a consumer that did not ack it.
	Redelivered bool

	Received time.Time // by this verifier
	Judged   time.Time // it was known what became of its transaction, or that it goes to the dead queue
	Safe     time.Time // the broker had confirmed it at its target, or its copy in another queue
	Done     time.Time // its row was deleted, if it was to be; the ack comes next
}

// A Verdict is how a message ends in a verifier.
type Verdict string

// The verdicts.
const (
	Forwarded    Verdict = "forwarded"
	Dropped      Verdict = "dropped"
	DeadLettered Verdict = "dead_lettered"
	SetAside     Verdict = "set_aside" // not judged yet: moved to the waiting queue
)

// tell tells the observer of messages that are done.
func (s *session) tell(messages ...*message) {
	if s.opts.Observer == nil {
		return
	}
	now := time.Now()
	for _, m := range messages {
		s.jobs.observe.Do(func() {
			s.opts.Observer.Done(Event{
				ID: m.id(), Message: m.staged, Verdict: m.verdict, Reason: m.why.code, Redelivered: m.delivery.Redelivered,
				Received: m.received, Judged: m.judged, Safe: m.safe, Done: now,
			})
		})
	}
}
