package world

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/compose/reconcile"
	"github.com/twoqueue/twoqueue/tests/faults/parts"
)

// Records are the contents of the databases, the queues and the diaries at the end, and the acts of
// the harness.
type Records struct {
	Orders   map[uuid.UUID]Placed // the committed orders
	Arrivals []Arrival            // in the order of their arrival
	Effects  map[uuid.UUID]int    // number of effects that the Deduplicator's transactions have committed
	Rows     []uuid.UUID          // left in the ledger
	Dead     []DeadLetter
	Staged   int // messages left in the staging, the waiting and the ordered queues
	Waiting  int // messages left in the receivers' queues
	Held     int // the most messages of one queue that the receivers can hold
	Judging  int // the most messages of the staging queue that the verifiers can hold

	Events Events
	// From the diaries, only for explanations. Canaries has the verifiers' canaries. Committed has
	// the time when a verifier first found a message committed, which is before it forwards the
	// message. Forgotten has the time when a verifier last began to delete a row, which is after
	// the target's confirm.
	Canaries  map[uuid.UUID]bool
	Committed map[uuid.UUID]time.Time
	Forgotten map[uuid.UUID]time.Time
	// From the diaries, only for measurements. Commits has when each sender learned of a commit.
	// AtTarget has when a verifier first knew of the target's confirm. Seen has the verifiers that
	// had a message. SessionsEnded has the sessions of verifiers that ended.
	Commits       map[uuid.UUID]Commit
	AtTarget      map[uuid.UUID]time.Time
	Seen          map[uuid.UUID]Seen
	SessionsEnded []SessionEnd
	// From the diaries too. Carried has the carried messages. Claims has how often verifiers
	// claimed a message in order to stage it again. Done has how many deliveries of it they
	// finished.
	Carried map[uuid.UUID]bool
	Claims  map[uuid.UUID]int
	Done    map[uuid.UUID]int
	// Cancelled is the number of delayed messages that were certainly cancelled, from the diaries.
	Cancelled int
}

// Placed has an order's target, and the time of its row's INSERT, which is before its message is
// published. If the message has an order key, Number is its position among the messages of the key,
// counted from 1.
type Placed struct {
	Target string
	At     time.Time
	Key    string `db:"name"`
	Number int
	// NotBefore, if it is not 0, is the time before which the message must not arrive, in
	// milliseconds since 1970.
	NotBefore int64 `db:"not_before"`
}

// An Arrival is one delivery to a receiver.
type Arrival struct {
	ID     uuid.UUID
	Target string
	Intact bool
	At     time.Time // when the receiver stored it
}

// A DeadLetter is a message in the dead queue.
type DeadLetter struct {
	ID      uuid.UUID
	Stray   string // the stray's name in Events.Strays, if it is one
	Reason  string
	Verdict string
}

// Events are the acts of the harness. They explain findings that would otherwise be violations.
type Events struct {
	StagingDeleted []Deletion
	TargetDeleted  map[string][]Deletion // by target
	DatabaseKilled []time.Time
	VerifierKilled []time.Time      // it may have had rows to delete
	Strays         map[string]Stray // published into the staging queue from outside, by name
	Troubles       []Trouble        // the faults of the plan
	Began          time.Time        // of the plan's first step
	Finished       time.Time        // when all faults had ended, just before the senders were stopped
}

// A Deletion of a queue, with all that is in it.
type Deletion struct {
	At    time.Time // when the queue was certainly gone
	Back  time.Time // when the queue was declared again; zero if it was not, and for the staging queue
	Ready int       // ready deliveries in the queue, shortly before
}

// A Stray is a message from outside that belongs into the dead queue.
type Stray struct {
	Reason string
	At     time.Time
	Staged bool // published into the staging queue
}

// A Violation is a broken guarantee.
type Violation struct {
	Kind Kind
	ID   uuid.UUID // zero if it concerns no single message
	Text string
}

func (v Violation) String() string { return fmt.Sprintf("%s: %s %s", v.Kind, v.ID, v.Text) }

// A Kind of violation.
type Kind string

// The kinds.
const (
	Lost        Kind = "lost"      // committed, and did not arrive
	Invented    Kind = "invented"  // arrived, and was not committed
	NoEffect    Kind = "no effect" // arrived, and had no effect
	TwoEffects  Kind = "more than one effect"
	Disordered  Kind = "out of order"    // its first copy arrived before the first copy of an earlier message of its key
	Changed     Kind = "changed"         // arrived with another content, or at another target
	Leftover    Kind = "left over"       // in a queue, at the end
	Orphan      Kind = "unexplained row" // in the ledger, at the end
	WronglyDead Kind = "wrongly in the dead queue"
	TooMany     Kind = "more lost with a queue than it can have held"
	Ended       Kind = "a process has ended by itself"
	EndedBeside Kind = "a session ended that no fault touched"
	Early       Kind = "arrived before its time"
	KeyCarried  Kind = "carried although it has an order key"
)

// Summary lists the violations, with a few of each kind.
func Summary(violations []Violation) string {
	const most = 8
	seen := make(map[Kind]int)
	var text strings.Builder
	for _, v := range violations {
		if seen[v.Kind]++; seen[v.Kind] <= most {
			fmt.Fprintf(&text, "\n  %v", v)
		}
	}
	for kind, n := range seen {
		if n > most {
			fmt.Fprintf(&text, "\n  %s: %d in all", kind, n)
		}
	}
	return text.String()
}

// Totals are the counts of a run.
type Totals struct {
	Committed   int // committed messages
	Delivered   int // committed messages that a receiver got
	InOrder     int // delivered messages with an order key
	Dead        int // committed messages in the dead queue, as intended
	Duplicates  int // deliveries beyond each message's first
	WithStaging int // lost with the staging queue when it was deleted
	WithTarget  int // lost with a target's queue when it was deleted
	Rows        int // left in the ledger, and explained
	Carried     int // committed, and carried by their rows
	Delayed     int // committed, delayed and not cancelled
	Cancelled   int // cancelled by transactions whose commit their senders learned of
	StagedAgain int // copies of carried messages that verifiers have staged
	Needless    int // the most of these copies that were needless: another delivery of the message was there
	Untouched   Untouched
}

// Add adds the totals of another run.
func (t *Totals) Add(o Totals) {
	t.Committed += o.Committed
	t.Delivered += o.Delivered
	t.InOrder += o.InOrder
	t.Dead += o.Dead
	t.Duplicates += o.Duplicates
	t.WithStaging += o.WithStaging
	t.WithTarget += o.WithTarget
	t.Rows += o.Rows
	t.Carried += o.Carried
	t.Delayed += o.Delayed
	t.Cancelled += o.Cancelled
	t.StagedAgain += o.StagedAgain
	t.Needless += o.Needless
	t.Untouched.Add(o.Untouched)
}

func (t Totals) String() string {
	return fmt.Sprintf("%d messages committed, %d delivered, %d of them with an order key, %d dead-lettered as meant, %d duplicates, %d lost with the staging queue and %d with target queues that were deleted, %d explained rows left; %d carried, %d delayed, %d cancelled, %d copies staged by verifiers, %d of these needless at most",
		t.Committed, t.Delivered, t.InOrder, t.Dead, t.Duplicates, t.WithStaging, t.WithTarget, t.Rows, t.Carried, t.Delayed, t.Cancelled, t.StagedAgain, t.Needless)
}

// undone bounds the age of a deletion that a kill of the database undoes because it did not wait for
// the disk: three times the WAL writer's delay of 200 ms, and more for a busy machine.
const undone = 10 * time.Second

// Judge compares the records with the guarantee: delivered if and only if committed, with effect
// exactly once.
func Judge(r Records) (Totals, []Violation) {
	j := judge{Records: r, arrived: make(map[uuid.UUID]int), dead: make(map[uuid.UUID]int), misled: make(map[uuid.UUID]bool), rows: make(map[uuid.UUID]bool)}
	j.totals.Committed, j.totals.Cancelled = len(r.Orders), r.Cancelled
	for _, order := range r.Orders {
		if order.NotBefore != 0 {
			j.totals.Delayed++
		}
	}
	for _, id := range r.Rows {
		j.rows[id] = true
	}
	j.arrivals()
	j.inOrder()
	j.deadLetters()
	j.orders()
	j.carried()
	j.left()
	j.sessions()
	j.totals.Untouched = j.untouched()
	return j.totals, j.violations
}

type judge struct {
	Records
	totals     Totals
	violations []Violation

	arrived map[uuid.UUID]int
	dead    map[uuid.UUID]int  // deliveries in the dead queue that belong there
	misled  map[uuid.UUID]bool // messages that are wrongly in the dead queue
	rows    map[uuid.UUID]bool
}

func (j *judge) violates(kind Kind, id uuid.UUID, format string, args ...any) {
	j.violations = append(j.violations, Violation{kind, id, fmt.Sprintf(format, args...)})
}

// arrivals checks that committed messages arrived unchanged, at their targets, and in time.
func (j *judge) arrivals() {
	for _, a := range j.Arrivals {
		if j.arrived[a.ID]++; j.arrived[a.ID] > 1 {
			j.totals.Duplicates++
		}
		order, committed := j.Orders[a.ID]
		switch {
		case !committed: // see orders
		case !a.Intact || a.Target != order.Target:
			j.violates(Changed, a.ID, "arrived at %s, was for %s; content intact: %t", a.Target, order.Target, a.Intact)
		case order.NotBefore != 0 && a.At.UnixMilli() < order.NotBefore:
			j.violates(Early, a.ID, "arrived at %s, %d ms before its time", a.At.UTC().Format(stamp), order.NotBefore-a.At.UnixMilli())
		}
	}
}

// inOrder checks that the numbers of each key's first copies count up by one.
func (j *judge) inOrder() {
	seen, last := make(map[uuid.UUID]bool), make(map[string]int)
	for _, a := range j.Arrivals {
		order := j.Orders[a.ID]
		if order.Key == "" || seen[a.ID] {
			continue
		}
		seen[a.ID] = true
		j.totals.InOrder++
		if order.Number != last[order.Key]+1 {
			j.violates(Disordered, a.ID, "number %d of %s arrived after %d", order.Number, order.Key, last[order.Key])
		}
		last[order.Key] = max(last[order.Key], order.Number)
	}
}

// deadLetters checks that the dead queue has only messages that belong there, each with the right
// reason.
func (j *judge) deadLetters() {
	strays := make(map[string]bool)
	for _, d := range j.Dead {
		if stray, ok := j.Events.Strays[d.Stray]; ok {
			strays[d.Stray] = true
			if d.Reason != stray.Reason {
				j.violates(WronglyDead, d.ID, "stray %s: for reason %q, not %q", d.Stray, d.Reason, stray.Reason)
			}
			continue
		}
		order, committed := j.Orders[d.ID]
		meant := meantForDead(order.Target) == d.Reason || d.Reason == unroutable && j.awayForLong(order)
		if !committed || !meant || d.Verdict != driver.Committed.String() {
			j.misled[d.ID] = true
			j.violates(WronglyDead, d.ID, "committed: %t, for %s; reason %q, verdict %q", committed, order.Target, d.Reason, d.Verdict)
			continue
		}
		j.dead[d.ID]++
	}
	for name, stray := range j.Events.Strays {
		if !strays[name] && !(stray.Staged && after(j.Events.StagingDeleted, stray.At)) {
			j.violates(Lost, uuid.Nil, "stray %s is not in the dead queue", name)
		}
	}
}

const unroutable = "unroutable"

// awayForLong reports whether the target's queue was missing, after the order was placed, for as
// long as verifiers wait for it. Its declaration may take that long on a slow machine.
func (j *judge) awayForLong(order Placed) bool {
	return slices.ContainsFunc(j.Events.TargetDeleted[order.Target], func(d Deletion) bool {
		return d.Back.After(order.At.Add(parts.Unroutable)) && d.Back.Sub(d.At) >= parts.Unroutable
	})
}

// meantForDead returns the reason for which messages of a target belong into the dead queue, or ""
// if they do not.
func meantForDead(target string) string {
	switch target {
	case parts.TargetName(Nowhere):
		return unroutable
	case parts.TargetName(Forbidden):
		return "not-allowed"
	}
	return ""
}

// orders checks that the messages of the orders, and no others, have arrived and had their effects.
// A missing message must have been in a queue that the harness deleted. If no verifier has received
// the target's confirm, the message was in the staging queue, and its row is still there.
func (j *judge) orders() {
	with := make(map[string]int) // lost with the queues of a target
	arrived, effects := reconcile.Compare(j.Orders, j.arrived), reconcile.Compare(j.arrived, j.Effects)
	for _, id := range arrived.Invented {
		j.violates(Invented, id, "arrived %d times", j.arrived[id])
	}
	for _, id := range effects.Invented {
		j.violates(Invented, id, "had an effect and never arrived")
	}
	for id, n := range effects.Repeated {
		j.violates(TwoEffects, id, "had %d", n)
	}
	for _, id := range arrived.Lost {
		order := j.Orders[id]
		_, confirmed := j.Forgotten[id]
		switch {
		case j.dead[id] > 0:
			j.totals.Dead++
		case j.misled[id]: // already reported
		case j.withTarget(id):
			with[order.Target]++
		case !confirmed && j.rows[id] && order.Key == "" && !j.Carried[id] && after(j.Events.StagingDeleted, order.At):
			j.totals.WithStaging++
		default:
			j.violates(Lost, id, "placed at %s, for %s; row left: %t, confirmed by the target: %t",
				order.At.UTC().Format(stamp), order.Target, j.rows[id], confirmed)
		}
	}
	for _, id := range effects.Lost {
		order, committed := j.Orders[id]
		switch {
		case !committed || j.misled[id]: // already reported
		case j.withTarget(id): // the target's queue was deleted before the effect
			with[order.Target]++
		default:
			j.violates(NoEffect, id, "arrived %d times", j.arrived[id])
		}
	}
	for id := range j.Orders {
		if j.arrived[id] > 0 && j.Effects[id] > 0 && !j.misled[id] {
			j.totals.Delivered++
		}
	}
	if most := j.mostStaged(); j.totals.WithStaging > most {
		j.violates(TooMany, uuid.Nil, "%d with the staging queue, which held at most %d when it was deleted", j.totals.WithStaging, most)
	}
	for target, lost := range with {
		j.totals.WithTarget += lost
		most := 0
		for _, d := range j.Events.TargetDeleted[target] {
			most += d.Ready + j.Held + mostBetweenCounts
		}
		if lost > most {
			j.violates(TooMany, uuid.Nil, "%d for %s, which held at most %d when it was deleted", lost, target, most)
		}
	}
}

// withTarget reports whether the message was lost with its target's queue: a verifier has received
// the target's confirm, and the queue was deleted after a verifier found the message committed.
func (j *judge) withTarget(id uuid.UUID) bool {
	_, confirmed := j.Forgotten[id]
	judged, known := j.Committed[id]
	return confirmed && known && slices.ContainsFunc(j.Events.TargetDeleted[j.Orders[id].Target], func(d Deletion) bool { return d.At.After(judged) })
}

// carried checks that no message with an order key is carried, and counts the copies. A message that
// was claimed, and finished more than once, had a needless copy, unless a verifier died or lost its
// session: then one copy is finished twice. Of 1,310 messages that 22 runs counted (2026-11-27), 678
// had a single copy. For 357 a verifier had forwarded the message, and its session ended before the
// DELETE. For 227 the original was with a verifier that was slow, frozen or cut off from the broker.
// For 48 the sender had recorded the ID again after a rollback.
func (j *judge) carried() {
	for id, order := range j.Orders {
		if !j.Carried[id] {
			continue
		}
		j.totals.Carried++
		j.totals.StagedAgain += j.Claims[id]
		j.totals.Needless += min(j.Claims[id], max(0, j.Done[id]-1))
		if order.Key != "" {
			j.violates(KeyCarried, id, "%s", order.Key)
		}
	}
}

// mostStaged returns the most messages that the staging queue can have held in all its deletions. A
// delivery may hold all messages of a transaction.
func (j *judge) mostStaged() (n int) {
	for _, d := range j.Events.StagingDeleted {
		n += d.Ready*parts.MostOrders + j.Judging + mostBetweenCounts
	}
	return n
}

// mostBetweenCounts is the most messages that a queue may confirm between the count of its ready
// messages and its deletion: some seconds of the traffic.
const mostBetweenCounts = 200

// after reports whether one of the deletions is after t.
func after(all []Deletion, t time.Time) bool {
	return slices.ContainsFunc(all, func(d Deletion) bool { return d.At.After(t) })
}

// left checks that the queues are empty, and that each row of the ledger has an explanation.
func (j *judge) left() {
	if j.Staged > 0 {
		j.violates(Leftover, uuid.Nil, "%d messages in the staging, the waiting and the ordered queues", j.Staged)
	}
	if j.Waiting > 0 {
		j.violates(Leftover, uuid.Nil, "%d messages in the receivers' queues", j.Waiting)
	}
	for _, id := range j.Rows {
		if why := j.explain(id); why != "" {
			j.violates(Orphan, id, "%s", why)
		} else {
			j.totals.Rows++
		}
	}
}

// explain returns why a row must not be there, or "" if its presence is explained.
func (j *judge) explain(id uuid.UUID) string {
	order, committed := j.Orders[id]
	switch {
	case !committed && j.Canaries[id]: // a canary of a killed proof
		return ""
	case !committed:
		return "it belongs to no order and to no proof"
	case j.Carried[id]: // a verifier always stages it
		return "it carries its message"
	case order.Key == "" && after(j.Events.StagingDeleted, order.At): // the message was deleted with the queue, or is on its way to it
		return ""
	}
	if j.arrived[id] > 0 && slices.ContainsFunc(j.Events.VerifierKilled, order.At.Before) {
		return "" // its DELETE had failed or its row was locked, and the killed verifier was to try again
	}
	forgotten, ok := j.Forgotten[id]
	if ok && slices.ContainsFunc(j.Events.DatabaseKilled, func(killed time.Time) bool {
		return forgotten.Before(killed) && killed.Sub(forgotten) < undone
	}) {
		return "" // the crash undid the deletion
	}
	return strings.TrimSpace(fmt.Sprintf("it was deleted: %t; no kill of the database has brought it back", ok))
}
