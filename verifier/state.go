package verifier

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/verifier/internal/forward"
)

// State describes a verifier at one moment.
type State struct {
	Session time.Time // when the session began; zero: there is none, see Err
	Err     error     // why the last session ended or could not start; nil while a session runs
	// Stopping: the context of Run has ended. The verifier drains, or has stopped.
	Stopping bool
	// Blocked is why nothing can be published: the broker's reason during a memory or disk alarm,
	// which RabbitMQ sends to a connection that publishes, or why there is no connection. "" if
	// messages can be published.
	Blocked string
	// Undeleted counts rows of delivered messages that could not be deleted yet. The verifier retries
	// them, and keeps carried messages among them from being staged again. After an hour it leaves
	// plain rows to the sweep. It remembers at most 100,000 rows: beyond that the sweep removes plain
	// ones, and carried messages are delivered again.
	Undeleted int
	// DeleteErr is why rows cannot be deleted; nil if they can, or if the rows are only locked.
	DeleteErr error

	Held     int          // messages received and not done
	Bytes    int          // of the held messages: at most Options.MaxBytes, or one larger message of each queue
	Stranded int          // deliveries with a message too large for the broker: each takes a place of its queue's prefetch
	Settling int          // lookups that wait in the database
	Targets  []HeldTarget // targets that take nothing, by name
	Waiting  int          // messages that wait for an open transaction
	// Evidence is when the session found proof that a sender had committed on its database server
	// since the session began (rule 6 of package bridge); zero: not yet. Until then it drops nothing.
	Evidence time.Time
	Withheld int // messages held that look rolled back and wait for evidence
	// WithheldSince is when the session withheld the first of them; zero: none, or there is evidence.
	// Others may be in the waiting queue.
	WithheldSince time.Time
	// Due counts the rows that carry a message and whose stage time has come, as far as they are
	// remembered: at most 10,000, and 10,000 more of which no copy was ever published. In a backlog
	// most of these messages are also in the queues; after an outage of the broker most are only in
	// their rows.
	Due int
	// Overdue is how long ago the stage time of the first of them was, by the database's clock; zero
	// if none is due.
	Overdue time.Duration
	// Unstageable counts the rows that carry a message which the session could not stage: the broker
	// refuses it, or its record cannot be read. They stay, and the log names each once. At most
	// 10,000. A row that is deleted counts for up to 20 minutes more.
	Unstageable int
	// Oldest are the first staged of the Waiting messages, at most 100.
	Oldest   []HeldMessage
	KeysHeld int // order keys whose messages wait for an earlier one
	// Keys are the keys that have waited longest, at most 100, by when the earlier message was staged.
	Keys []HeldKey
}

// A HeldKey is an order key whose messages wait for an earlier one.
type HeldKey struct {
	Key      string
	Queue    string    // the ordered queue
	ID       string    // of the message that the others wait for
	Since    time.Time // when that message was staged, or if that is not known, received
	Messages int       // waiting for it
}

// A HeldTarget is a target that takes no messages at present.
type HeldTarget struct {
	Target   bridge.Target
	Reason   HoldReason
	Messages int       // waiting for the target
	Since    time.Time // when it was first held, perhaps by an earlier session
	Problem  string    // why it takes none, in words
	Mend     string    // how to fix it
	// DeadLetterAt is when the first of the messages goes to the dead queue, unless the target takes
	// messages by then; zero if none is to go there. With Options.HoldKeys a message with an order key
	// counts here, although it stays in its queue.
	DeadLetterAt time.Time
}

// A HoldReason says why a target takes no messages.
type HoldReason string

// The reasons.
const (
	Full    = HoldReason(forward.Full)    // "full": it nacks
	Missing = HoldReason(forward.Missing) // "unroutable": it does not exist
	Stuck   = HoldReason(forward.Stuck)   // "stuck": it does not confirm
)

// A HeldMessage waits for an open transaction.
type HeldMessage struct {
	ID     string
	Target bridge.Target
	Since  time.Time // when it was staged, or if that is not known, received
}

const oldestLimit = 100

// present is the current session, if any, or the error of the last one.
type present struct {
	mu       sync.Mutex
	session  *session
	since    time.Time
	err      error
	stopping bool
}

func (p *present) stop(stopping bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopping = stopping
}

func (p *present) begin(s *session, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.session, p.since, p.err = s, at, nil
}

func (p *present) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.session, p.since, p.err = nil, time.Time{}, err
}

// recordEnd records the end of a session, or of an attempt to start one.
func (v *Verifier) recordEnd(err error) {
	v.now.end(err)
	if v.opts.Observer != nil {
		v.jobs.observe.Do(func() { v.opts.Observer.SessionEnded(err) })
	}
}

// State returns the verifier's present state. It looks at every waiting message, so do not call it
// for each message.
func (v *Verifier) State() State {
	v.now.mu.Lock()
	s := v.now.session
	state := State{Session: v.now.since, Err: v.now.err, Stopping: v.now.stopping}
	v.now.mu.Unlock()
	state.Undeleted, state.DeleteErr = v.forgetter.count(), v.forgetter.failure()
	if s == nil {
		return state
	}
	for _, c := range s.consumers() {
		state.Held += int(c.open.Load())
		state.Bytes += c.keptBytes()
		state.Stranded += c.stranded()
		if c.keyOrder != nil {
			state.Keys = append(state.Keys, c.keyOrder.held(c.queue)...)
		}
	}
	slices.SortFunc(state.Keys, func(a, b HeldKey) int { return a.Since.Compare(b.Since) })
	state.KeysHeld = len(state.Keys)
	state.Keys = state.Keys[:min(len(state.Keys), oldestLimit)]
	state.Settling = int(s.settling.Load())
	state.Blocked = s.blocked()
	held := s.forwarder.Held()
	state.Targets = make([]HeldTarget, 0, len(held))
	for _, t := range held {
		state.Targets = append(state.Targets, HeldTarget{
			Target: t.Target, Reason: HoldReason(t.Reason), Messages: t.Messages, Since: t.Since,
			Problem: t.Problem, Mend: t.Mend, DeadLetterAt: t.DeadLetterAt,
		})
	}
	slices.SortFunc(state.Targets, func(a, b HeldTarget) int { return cmp.Compare(a.Target.String(), b.Target.String()) })
	state.Evidence, state.WithheldSince = s.evidence.state()
	state.Withheld = s.room.withheld()
	state.Due, state.Overdue, state.Unstageable = s.stager.state(time.Now())
	waiting := s.longest()
	state.Waiting = len(waiting)
	for _, m := range waiting[:min(len(waiting), oldestLimit)] {
		state.Oldest = append(state.Oldest, HeldMessage{m.id(), m.staged.Target(), m.since()})
	}
	return state
}

// blocked returns why nothing can be published, as far as a publishing connection has learned it,
// or "". While only carried rows wait, nothing is forwarded, so only the connection that stages
// learns it.
func (s *session) blocked() string { return cmp.Or(s.forwarder.Blocked(), s.broker.Blocked()) }

// longest lists the messages that wait for an open transaction, the oldest first.
func (s *session) longest() []*message {
	waiting := s.room.messages()
	slices.SortStableFunc(waiting, func(a, b *message) int { return a.since().Compare(b.since()) })
	return waiting
}
