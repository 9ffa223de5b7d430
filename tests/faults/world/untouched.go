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

// A Trouble is a fault of the plan, with its beginning and its end.
type Trouble struct {
	Fault    Fault
	From, To time.Time
	Sender   string             // the sender's name, if the fault is of a sender or its link
	Verifier string             // the verifier's name, if the fault is of a verifier or its link
	Rows     map[uuid.UUID]bool // the rows that LockRows locked
}

// Seen has the verifiers that had a message.
type Seen struct {
	By    []string // names of the verifiers that have it in their diaries; there may be more
	Again bool     // delivered again: a consumer had the message and did not ack it
}

// A SessionEnd is the end of a verifier's session by an error.
type SessionEnd struct {
	Verifier string
	At       time.Time
	Line     string // of the diary
}

// A Commit has the time when a sender learned that its transaction committed.
type Commit struct {
	At     time.Time
	Sender string
}

const (
	// inTime is the longest time from its commit in which an untouched message must arrive.
	inTime = 2 * time.Second

	// touchesAfter is how long a fault touches messages after its end: sessions start again, held
	// targets are tried again, and a backlog is worked off.
	touchesAfter = 5 * time.Second

	// longOpen is the longest time that a transaction may be open. A longer transaction touches its
	// own messages: the verifier has set them aside for later.
	longOpen = 500 * time.Millisecond
)

// touches reports whether a fault touches a message. A local fault touches the messages of its
// target, of its rows, of its sender, or the messages that its verifier has had. The verifier's
// diary and the broker show which messages it has had: a verifier that was cut off may have held
// any message that is delivered again. Strays, slow transactions of other messages and a limit of
// connections touch no message. Any other fault, of the broker, of a database, or of a receiver and
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
	InTime   int           // messages that arrived in time
	Slowest  time.Duration // from the commit to the target
	Late     []uuid.UUID   // some messages that did not arrive in time
}

// mostLate is the most late messages that are kept for their histories.
const mostLate = 4

// Share returns the share that arrived in time.
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

// untouched measures the untouched messages. It leaves out a message whose commit no sender learned
// of, a message that was committed before the plan began, a delayed message, a message for the dead
// queue, and a message with an order key, because the queue of the ordered target is regularly full
// by design.
//
// A message has arrived when its target has confirmed it, or a receiver has stored it. The time
// that receivers take to store messages from their queues is outside the bridge: on a busy machine
// it takes seconds.
func (j *judge) untouched() (u Untouched) {
	if len(j.Events.Troubles) == 0 {
		return u // faults outside a plan have no times
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
			return t.From.Before(until) && commit.At.Before(t.To.Add(touchesAfter)) && t.touches(id, order, commit, j.Seen[id])
		}) {
			continue
		}
		u.Messages++
		at, ok := arrived[id]
		if !ok {
			continue // orders reports it as lost
		}
		took := max(0, at.Sub(commit.At)) // the receiver may be faster than the sender
		u.Slowest = max(u.Slowest, took)
		if took <= inTime {
			u.InTime++
		} else if len(u.Late) < mostLate {
			u.Late = append(u.Late, id)
		}
	}
	return u
}

// sessions checks that local faults end only the sessions of the verifiers that they name.
func (j *judge) sessions() {
	local := len(j.Events.Troubles) > 0 && !slices.ContainsFunc(j.Events.Troubles, func(t Trouble) bool {
		return !slices.Contains(LocalKinds, t.Fault.Kind)
	})
	if !local {
		return
	}
	for _, end := range j.SessionsEnded {
		named := slices.ContainsFunc(j.Events.Troubles, func(t Trouble) bool {
			return t.Verifier == end.Verifier && t.From.Before(end.At) && end.At.Before(t.To.Add(touchesAfter))
		})
		if !named && end.At.Before(j.Events.Finished) {
			j.violates(EndedBeside, uuid.Nil, "%s", end.Line)
		}
	}
}
