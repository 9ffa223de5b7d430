package world

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/faults/parts"
)

// A Trouble is a fault of the plan, from its beginning to its end.
type Trouble struct {
	Fault    Fault
	From, To time.Time
	Sender   string             // of a fault of a process or its link: its name, if it is a sender
	Verifier string             // the same, if it is a verifier
	Rows     map[uuid.UUID]bool // of LockRows
}

// Seen tells which verifiers had a message.
type Seen struct {
	By    []string // by name: the verifiers that have looked it up, at least
	Again bool     // delivered again: a consumer had it that did not ack it
}

// A SessionEnd is the end of a verifier's session by an error.
type SessionEnd struct {
	Verifier string
	At       time.Time
	Line     string // of the diary
}

// A Commit is when a sender heard that its transaction has committed.
type Commit struct {
	At     time.Time
	Sender string
}

const (
	// inTime is within which time after its commit an untouched message is to arrive.
	inTime = 2 * time.Second

	// aftermath is how long after its end a fault touches messages: sessions start again,
	// held targets are tried again, and a backlog is worked off.
	aftermath = 5 * time.Second

	// longOpen is for how long a transaction may be open. A longer one touches its own messages:
	// the verifier has set them aside, to look at them again later.
	longOpen = 500 * time.Millisecond
)

// touches tells whether a fault touches a message. A local fault touches some messages: the
// messages of its target, of its rows, of its sender, or the messages that its verifier has had. Which
// these are, the verifier's own diary says, and the broker: a verifier that was cut off may have
// held any message that is delivered again. Strays, slow transactions of other messages and a limit of
// connections touch none. Any other fault, of the broker, of a database, or of a receiver with
// its links, touches all.
func (t Trouble) touches(id uuid.UUID, order Placed, commit Commit, seen Seen) bool {
	is := func(target bridge.Target) bool { return order.Target == parts.TargetName(target) }
	switch t.Fault.Kind {
	case StrayMessages, UnreadableMessages, UnpublishableMessages, FewConnections, SlowTransactions:
		return false
	case SilentTarget:
		return is(Quorum)
	case FullBeside:
		return is(Exchange)
	case UnbindOrdered:
		return is(Ordered)
	case DeleteTarget:
		return is([]bridge.Target{Classic, Quorum, Exchange}[t.Fault.Target])
	case LockRows:
		return t.Rows[id]
	case KillProcess, FreezeProcess, VanishHost, CutLink, TearLink, LoseLink, SlowLink:
		switch {
		case t.Sender != "":
			return t.Sender == commit.Sender
		case t.Verifier != "":
			return seen.Again || slices.Contains(seen.By, t.Verifier)
		}
	}
	return true
}

// Untouched counts the messages that no fault touched between their commit and inTime later.
type Untouched struct {
	Messages int
	InTime   int           // of these, arrived in time
	Slowest  time.Duration // from the commit to the target
	Late     []uuid.UUID   // some that did not arrive in time
}

// mostLate is how many of the late messages are kept, to tell their histories.
const mostLate = 4

// Share is the part that arrived in time.
func (u Untouched) Share() float64 { return float64(u.InTime) / float64(max(1, u.Messages)) }

// Add adds another run's.
func (u *Untouched) Add(o Untouched) {
	u.Messages += o.Messages
	u.InTime += o.InTime
	u.Slowest = max(u.Slowest, o.Slowest)
	u.Late = append(u.Late, o.Late...)
}

func (u Untouched) String() string {
	if u.Messages == 0 {
		return "no message untouched by a fault"
	}
	return fmt.Sprintf("%d messages untouched by a fault, %d of them (%.2f %%) arrived within %v of the commit, the slowest after %v",
		u.Messages, u.InTime, 100*u.Share(), inTime, u.Slowest.Round(time.Millisecond))
}

// untouched measures the untouched messages. It leaves out a message whose commit no sender has
// heard of, or that was committed before the plan began, a delayed message, a message for the dead queue,
// and a message with an order key, because the queue of the ordered target is full by design every now
// and then.
//
// A message has arrived when its target has confirmed it, or a receiver has stored it. How soon
// receivers store what is in their queues is not the bridge's affair: on a busy machine it takes
// seconds.
func (j *judge) untouched() (u Untouched) {
	if len(j.Events.Troubles) == 0 {
		return u // faults that no plan has injected have no times
	}
	arrived := maps.Clone(j.AtTarget)
	if arrived == nil {
		arrived = make(map[uuid.UUID]time.Time)
	}
	for _, a := range j.Arrivals {
		if first, ok := arrived[a.ID]; !ok || a.At.Before(first) {
			arrived[a.ID] = a.At
		}
	}
	for id, order := range j.Orders {
		commit, heard := j.Commits[id]
		if !heard || commit.At.Before(j.Events.Began) || order.Key != "" || order.NotBefore != 0 || meantForDead(order.Target) != "" || commit.At.Sub(order.At) > longOpen {
			continue
		}
		until := commit.At.Add(inTime)
		if until.After(j.Events.Finished) || slices.ContainsFunc(j.Events.Troubles, func(t Trouble) bool {
			return t.From.Before(until) && commit.At.Before(t.To.Add(aftermath)) && t.touches(id, order, commit, j.Seen[id])
		}) {
			continue
		}
		u.Messages++
		at, ok := arrived[id]
		if !ok {
			continue // the judge tells that it is lost
		}
		took := max(0, at.Sub(commit.At)) // its receiver may be faster than its sender
		u.Slowest = max(u.Slowest, took)
		if took <= inTime {
			u.InTime++
		} else if len(u.Late) < mostLate {
			u.Late = append(u.Late, id)
		}
	}
	return u
}

// sessions: local faults end no session, except the sessions of the verifiers that they name.
func (j *judge) sessions() {
	local := len(j.Events.Troubles) > 0 && !slices.ContainsFunc(j.Events.Troubles, func(t Trouble) bool {
		return !slices.Contains(LocalKinds, t.Fault.Kind)
	})
	if !local {
		return
	}
	for _, end := range j.SessionsEnded {
		named := slices.ContainsFunc(j.Events.Troubles, func(t Trouble) bool {
			return t.Verifier == end.Verifier && t.From.Before(end.At) && end.At.Before(t.To.Add(aftermath))
		})
		if !named && end.At.Before(j.Events.Finished) {
			j.violates(EndedBeside, uuid.Nil, "%s", end.Line)
		}
	}
}
