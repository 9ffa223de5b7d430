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

	// Held counts the messages that were received, and are not yet forwarded, dropped, dead-lettered
	// or set aside (Stats.SetAside).
	Held    int
	Bytes   int     // of the held messages: at most Options.MaxBytes, or one larger message of each queue
	Waiting Waiting // the held messages that cannot go on yet; Targets and Keys count further ones
	// Settling counts the lookups that wait in the database.
	Settling int
	// Targets are the unavailable targets, by name.
	Targets []UnavailableTarget
	// Evidence is when the session found proof that a sender had committed on its database server
	// since the session began (rule 6 of package bridge); zero: not yet. Until then it drops nothing.
	Evidence time.Time
	// Due counts the rows that carry a message and whose stage time has come. At most 10,000, and 10,000
	// more of which no copy was ever published. In a backlog most of these messages are also in the
	// queues; after an outage of the broker most are only in their rows.
	Due int
	// Overdue is how long ago the stage time of the first of them was, by the database's clock; zero
	// if none is due.
	Overdue time.Duration
	// Unstageable counts the rows that carry a message which the session could not stage: the broker
	// refuses it, or its record cannot be read. They stay, and the log names each once. At most
	// 10,000. A row that is deleted counts for up to 20 minutes more.
	Unstageable int
	// Oldest are the first staged of the messages that wait for a transaction, at most 100.
	Oldest      []WaitingMessage
	KeysWaiting int // order keys whose messages wait for an earlier one
	// Keys are the keys that have waited longest, at most 100, by when the earlier message was staged.
	Keys []WaitingKey
}

// Waiting counts held messages that cannot go on yet, by the reason.
type Waiting struct {
	Transaction int // an open transaction
	Evidence    int // they look rolled back, and the session has no evidence yet (State.Evidence)
	// EvidenceSince is when the first message of the session began to wait for evidence; zero: none
	// has, or there is evidence. Others may be set aside.
	EvidenceSince time.Time
	// TooLarge counts deliveries with a message that is larger than the broker accepts. Each takes a
	// place of its queue's prefetch.
	TooLarge int
}

// A WaitingKey is an order key whose messages wait for an earlier one.
type WaitingKey struct {
	Key      string
	Queue    string    // the ordered queue
	ID       string    // of the message that the others wait for
	Since    time.Time // when that message was staged, or if that is not known, received
	Messages int       // waiting for it
}

// An UnavailableTarget takes no messages at present.
type UnavailableTarget struct {
	Target   bridge.Target
	Reason   TargetReason
	Messages int       // waiting for the target
	Since    time.Time // when it first took none, perhaps during an earlier session
	Problem  string    // why it takes none, in words
	Fix      string    // how to fix it
	// DeadLetterAt is when the first of the messages goes to the dead queue, unless the target takes
	// messages by then; zero if none is to go there. With Options.HoldKeys no message with an order key
	// goes there.
	DeadLetterAt time.Time
}

// A TargetReason is why a target is unavailable.
type TargetReason string

// The reasons.
const (
	Full    = TargetReason(forward.Full)    // "full": it nacks
	Missing = TargetReason(forward.Missing) // "unroutable": it does not exist
	Stuck   = TargetReason(forward.Stuck)   // "stuck": it does not confirm
)

// A WaitingMessage waits for an open transaction.
type WaitingMessage struct {
	ID     string
	Target bridge.Target
	Since  time.Time // when it was staged, or if that is not known, received
}

const oldestLimit = 100

// currentSession is the current session, if any, or the error of the last one.
type currentSession struct {
	mu       sync.Mutex
	session  *session
	since    time.Time
	err      error
	stopping bool
}

func (c *currentSession) stop(stopping bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopping = stopping
}

func (c *currentSession) begin(s *session, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session, c.since, c.err = s, at, nil
}

func (c *currentSession) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session, c.since, c.err = nil, time.Time{}, err
}

// get returns the session, nil if there is none, and the state without its part.
func (c *currentSession) get() (*session, State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session, State{Session: c.since, Err: c.err, Stopping: c.stopping}
}

// describe fills in the session's part of a state.
func (s *session) describe(state *State) {
	for _, c := range s.consumers() {
		state.Held += c.Messages()
		state.Bytes += c.Bytes()
		state.Waiting.TooLarge += c.Stranded()
		if order := c.Order(); order != nil {
			for _, key := range order.Waiting() {
				first := key.First.(*message)
				state.Keys = append(state.Keys, WaitingKey{Key: key.Key, Queue: c.Queue, ID: first.id(), Since: first.waitingSince(), Messages: key.Messages})
			}
		}
	}
	slices.SortFunc(state.Keys, func(a, b WaitingKey) int { return a.Since.Compare(b.Since) })
	state.KeysWaiting = len(state.Keys)
	state.Keys = state.Keys[:min(len(state.Keys), oldestLimit)]
	state.Settling = int(s.room.settling.Load())
	state.Blocked = s.blocked()
	held := s.forwarder.Held()
	state.Targets = make([]UnavailableTarget, 0, len(held))
	for _, t := range held {
		state.Targets = append(state.Targets, UnavailableTarget{
			Target: t.Target, Reason: TargetReason(t.Reason), Messages: t.Messages, Since: t.Since,
			Problem: t.Problem, Fix: t.Fix, DeadLetterAt: t.DeadLetterAt,
		})
	}
	slices.SortFunc(state.Targets, func(a, b UnavailableTarget) int { return cmp.Compare(a.Target.String(), b.Target.String()) })
	state.Evidence, state.Waiting.EvidenceSince = s.evidence.state()
	state.Waiting.Evidence = s.room.countWithheld()
	state.Due, state.Overdue, state.Unstageable = s.stager.state(time.Now())
	waiting := s.room.longest()
	state.Waiting.Transaction = len(waiting)
	for _, m := range waiting[:min(len(waiting), oldestLimit)] {
		state.Oldest = append(state.Oldest, WaitingMessage{m.id(), m.staged.Target(), m.waitingSince()})
	}
}
