package forward

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/verifier/internal/pipe"
)

// heldTargets contains the targets that take no messages now, with the messages that wait for them: a
// full queue (nack), a missing one (return, 404), a stuck one. Each such target is tried with backoff,
// first with one message, after a success with twice as many. It delays no other target (rule 8 of
// package bridge). It is released as soon as all its waiting messages may be tried together. It need
// not wait until there are none: of an order key's messages, one always waits.
//
// An exchange that nacks a message may have given it to its other queues; only the full queue lacks
// it. So the first attempt of a message at such an exchange does not wait (heldTarget.exempts),
// each message is retried after pauses of its own (retryAt), and given up after Copies attempts.
type heldTargets struct {
	log        *slog.Logger
	unroutable time.Duration // how long a missing target is retried
	copies     int           // most nacks of a message by an exchange
	holdKeys   bool          // a message with an order key never goes to the dead queue
	more       chan struct{} // woken when another message waits

	mu      sync.Mutex
	targets map[bridge.Target]*heldTarget
	count   int
}

type heldTarget struct {
	reason       Reason
	problem      problem
	since        time.Time // when the target was first held
	waiting      []*Publication
	backoff      *backoff.ExponentialBackOff
	due          time.Time
	burst        int // how many messages are tried together
	trying       int // how many of these are under way
	failed       bool
	placed       bool // at least one of them was placed
	foundMissing bool // the last attempt found the target missing
	works        bool // the last attempt succeeded
	// silent: a message to the target had no answer for long, and none has been placed since. On a
	// shared channel the next trial would delay other messages: for a quorum queue without a leader
	// RabbitMQ answers after a minute, with a nack, and blocks the channel until then.
	silent bool

	missingSince time.Time // zero if the target existed when it was last tried
	missingAt    time.Time // when the target was last found missing
	remembered   bool      // an earlier session held it
}

// A problem says why a target takes no messages, and how to fix it.
type problem struct{ text, fix string }

var (
	fullQueue  = problem{"a queue refuses messages (nack): it is full, or has no leader", "consume the queue faster, raise its length limit, or start the nodes that are missing"}
	noConfirm  = problem{"the broker does not confirm", "see the state of the queue and of its nodes"}
	noQueue    = problem{"the queue does not exist", "declare the queue, or send to another one"}
	noBinding  = problem{"no queue is bound to the exchange for this routing key", "bind a queue to the exchange, or send with another routing key"}
	noExchange = problem{"the exchange does not exist", "declare the exchange, or send to another one"}
)

// unbound is the problem of a message that the broker has returned.
func unbound(to bridge.Target) problem {
	if to.Exchange == "" {
		return noQueue
	}
	return noBinding
}

const (
	maxBurst = 1024
	// rememberFor is how long a target stays held without a message: messages that were set aside come
	// again.
	rememberFor = time.Minute
	// maxRemembered bounds how many targets stay held without a message.
	maxRemembered = 1000
)

// forNextSession returns the held targets for the next session, without the messages. Results that
// the old session's channels still report change only h.
func (h *heldTargets) forNextSession() map[bridge.Target]*heldTarget {
	h.mu.Lock()
	defer h.mu.Unlock()
	kept := make(map[bridge.Target]*heldTarget)
	for to, target := range h.targets {
		if len(kept) == maxRemembered {
			break
		}
		next := *target.backoff
		kept[to] = &heldTarget{
			reason: target.reason, problem: target.problem, since: target.since, silent: target.silent,
			backoff: &next, due: target.due, burst: 1,
			missingSince: target.missingSince, missingAt: target.missingAt, remembered: true,
		}
	}
	return kept
}

// postponed returns copies of held targets with their times moved by a duration.
func postponed(held map[bridge.Target]*heldTarget, by time.Duration) map[bridge.Target]*heldTarget {
	out := make(map[bridge.Target]*heldTarget)
	for to, target := range held {
		next, wait := *target, *target.backoff
		next.backoff, next.due = &wait, target.due.Add(by)
		if !target.missingSince.IsZero() {
			next.missingSince, next.missingAt = target.missingSince.Add(by), target.missingAt.Add(by)
		}
		out[to] = &next
	}
	return out
}

// enqueueIfHeld reports whether p's target is held. If so, p waits there, unless it is to be
// published Once.
func (h *heldTargets) enqueueIfHeld(p *Publication) (held bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	target := h.targets[p.To]
	if target == nil || p.trial || target.exempts(p) {
		return false
	}
	if !p.Once {
		h.enqueue(target, p)
	}
	return true
}

// exempts reports whether p does not wait although its target is held: p is the first attempt at an
// exchange that nacks, and the exchange may have other queues for it.
func (t *heldTarget) exempts(p *Publication) bool {
	return t.reason == Full && !t.silent && p.To.Exchange != "" && p.Retries != nil && p.Retries.Nacks == 0
}

func (h *heldTargets) enqueue(target *heldTarget, p *Publication) {
	target.waiting = append(target.waiting, p)
	h.count += p.countsAsWaiting()
	pipe.Wake(h.more)
	if r := p.Retries; r != nil && !p.Ordered && target.reason == Missing && r.UnroutableSince.IsZero() {
		r.UnroutableSince = target.unroutableSince(p, time.Now())
	}
}

// unroutableSince returns when a message began to wait for its missing target. If an earlier
// session has handed the message back by its end, the time continues from the target's, but begins
// no earlier than the message was staged.
func (t *heldTarget) unroutableSince(p *Publication, now time.Time) time.Time {
	if !t.remembered || !p.Redelivered || t.missingSince.IsZero() {
		return now
	}
	since := t.missingSince
	if p.StagedAt.After(since) {
		since = p.StagedAt
	}
	if since.After(now) { // by the sender's clock
		return now
	}
	return since
}

// enqueueFailed queues p at its target, which did not take it.
func (h *heldTargets) enqueueFailed(p *Publication, reason Reason, why problem) {
	h.mu.Lock()
	defer h.mu.Unlock()
	target := h.holdTarget(p.To, reason, why, "message_id", p.ID)
	target.silent = target.silent || reason == Stuck || p.slow && reason == Full
	target.foundMissing = reason == Missing
	target.works = false
	h.enqueue(target, p)
	h.noteFailure(target, p, reason)
}

// nackedOut is enqueueFailed for a message that is given up: it is not queued.
func (h *heldTargets) nackedOut(p *Publication, why problem) {
	h.mu.Lock()
	defer h.mu.Unlock()
	target := h.holdTarget(p.To, Full, why, "message_id", p.ID)
	target.silent = target.silent || p.slow
	target.foundMissing, target.works = false, false
	h.noteFailure(target, p, Full)
}

// noteFailure updates the target after a failed attempt.
func (h *heldTargets) noteFailure(target *heldTarget, p *Publication, reason Reason) {
	if reason == Missing {
		target.missingAt = time.Now()
		if target.missingSince.IsZero() {
			target.missingSince = target.missingAt
		}
	} else {
		target.noteExists()
	}
	if p.trial {
		target.failed = true
		h.endTrial(p, false)
	}
}

// holdStuck holds a target that does not confirm while others do. It returns false if the target is
// held already. Messages in flight to it may still arrive.
func (h *heldTargets) holdStuck(to bridge.Target) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.targets[to] != nil {
		return false
	}
	h.holdTarget(to, Stuck, noConfirm).silent = true
	return true
}

// holdTarget returns the held target, and begins to hold it if necessary.
func (h *heldTargets) holdTarget(to bridge.Target, reason Reason, why problem, about ...any) *heldTarget {
	target := h.targets[to]
	if target == nil {
		now := time.Now()
		target = &heldTarget{since: now, backoff: pipe.NewBackOff(50*time.Millisecond, 5*time.Second), burst: 1}
		target.due = now.Add(target.backoff.NextBackOff())
		h.targets[to] = target
		attributes := append([]any{"target", to.String(), "reason", string(reason), "text", why.text, "fix", why.fix}, about...)
		if reason == Missing {
			attributes = append(attributes, "dead_letter_after", h.unroutable)
		}
		h.log.Warn("target is unavailable", attributes...)
	}
	target.reason, target.problem = reason, why
	return target
}

// noteEnd notes that p needs no further attempt: its target has it (placed), or it was removed or
// given up.
func (h *heldTargets) noteEnd(p *Publication, placed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch target := h.targets[p.To]; {
	case p.trial:
		h.endTrial(p, placed)
	case placed && target != nil && target.reason == Full && p.To.Exchange != "" && !target.silent:
		target.works, target.due = true, time.Now() // a first attempt (exempts) shows it as well
	}
}

// endTrial counts the end of one trial. After the last one of a burst it decides when to try next,
// and with how many. A message that was itself refused shows nothing about its target.
func (h *heldTargets) endTrial(p *Publication, placed bool) {
	p.trial = false
	target := h.targets[p.To]
	target.placed = target.placed || placed
	target.trying--
	if target.trying > 0 {
		return
	}
	failed, works := target.failed, target.placed
	target.failed, target.placed = false, false
	switch {
	case failed:
		target.burst = 1
		target.due = time.Now().Add(target.backoff.NextBackOff())
		return
	case !works:
		target.due = time.Now()
		return
	}
	target.noteExists()
	target.works, target.silent = true, false
	target.backoff.Reset()
	target.burst = min(2*target.burst, maxBurst)
	target.due = time.Now()
}

// noteExists notes that the target exists. If it is missing later, the time of its waiting messages
// begins then.
func (t *heldTarget) noteExists() {
	t.missingSince = time.Time{}
	for _, p := range t.waiting {
		if p.Retries != nil {
			p.Retries.UnroutableSince = time.Time{}
		}
	}
}

// takeDue returns publications to retry, and publications to give up because they have been unroutable
// for too long (givesUp). It releases a working target when all its waiting messages may be tried
// together, and any other target some time after no message waits for it.
//
// At most soloChannels silent targets are tried at a time, the longest due first. The messages
// of the others wait here, where they can be set aside.
func (h *heldTargets) takeDue(now time.Time) (again []*Publication, dead []givenUp) {
	h.mu.Lock()
	defer h.mu.Unlock()
	trying := 0 // silent targets
	var due []*heldTarget
	for to, target := range h.targets {
		if target.trying > 0 {
			if target.silent {
				trying++
			}
			continue
		}
		if !target.missingSince.IsZero() {
			for _, p := range h.takeOut(target, func(p *Publication) bool { return h.givesUp(target, p, now) }) {
				dead = append(dead, givenUp{p, target.problem})
			}
			target.foundMissing = false
		}
		if h.mayRelease(target, now) {
			for _, p := range target.waiting {
				h.count -= p.countsAsWaiting()
			}
			again = append(again, target.waiting...)
			delete(h.targets, to)
			h.log.Info("target is no longer held", "target", to.String(), "works", target.works)
			continue
		}
		switch n := target.trialsDue(to, now); {
		case n == 0:
		case target.silent:
			due = append(due, target)
		default:
			again = append(again, h.startTrials(target, n)...)
		}
	}
	slices.SortFunc(due, func(a, b *heldTarget) int { return a.due.Compare(b.due) })
	for _, target := range due[:min(len(due), max(0, soloChannels-trying))] {
		again = append(again, h.startTrials(target, 1)...)
	}
	return again, dead
}

// mayRelease reports whether a target need no longer be held.
func (h *heldTargets) mayRelease(target *heldTarget, now time.Time) bool {
	switch {
	case target.works && (len(target.waiting) <= target.burst || target.burst == maxBurst):
		return true
	case len(target.waiting) > 0:
		return false
	}
	return now.Sub(target.due) > rememberFor || len(h.targets) > maxRemembered
}

// trialsDue returns how many publications are to be tried together now.
func (t *heldTarget) trialsDue(to bridge.Target, now time.Time) int {
	if t.reason == Full && to.Exchange != "" && !t.works {
		n := t.bringForward(now)
		if t.silent && now.Before(t.due) {
			return 0
		}
		return min(n, maxBurst)
	}
	if now.Before(t.due) {
		return 0
	}
	return min(t.burst, len(t.waiting))
}

// bringForward moves the publications whose own pause is over to the front, and counts them.
func (t *heldTarget) bringForward(now time.Time) (due int) {
	isDue := func(p *Publication) bool {
		return p.Retries == nil || !now.Before(p.Retries.retryAt())
	}
	slices.SortStableFunc(t.waiting, func(a, b *Publication) int {
		switch {
		case isDue(a) == isDue(b):
			return 0
		case isDue(a):
			return -1
		}
		return 1
	})
	for due < len(t.waiting) && isDue(t.waiting[due]) {
		due++
	}
	return due
}

// startTrials removes and returns the first n publications for another attempt.
func (h *heldTargets) startTrials(target *heldTarget, n int) []*Publication {
	trials := target.waiting[:n]
	for _, p := range trials {
		h.count -= p.countsAsWaiting()
		p.trial, p.solo = true, target.silent
	}
	target.waiting = target.waiting[n:]
	target.trying = n
	return trials
}

// A givenUp publication was unroutable for too long.
type givenUp struct {
	*Publication
	why problem
}

// givesUp reports whether a message has been unroutable for too long, after an attempt that found
// its target missing.
//
// Messages of an order key arrive here one after the other. So for them the target's missing time
// counts, and any attempt since the message was received.
func (h *heldTargets) givesUp(target *heldTarget, p *Publication, now time.Time) bool {
	switch {
	case p.Retries == nil:
		return false
	case p.Ordered:
		return now.Sub(h.missedSince(target, p)) >= h.unroutable && !p.Received.After(target.missingAt)
	case !target.foundMissing:
		return false
	}
	if p.Retries.UnroutableSince.IsZero() { // its target was held for another reason
		p.Retries.UnroutableSince = now
	}
	return now.Sub(p.Retries.UnroutableSince) >= h.unroutable
}

// missedSince returns since when the target of a message counts as missing.
func (h *heldTargets) missedSince(target *heldTarget, p *Publication) time.Time {
	if p.Ordered && target.missingSince.After(p.Retries.UnroutableSince) {
		return target.missingSince
	}
	return p.Retries.UnroutableSince
}

func (h *heldTargets) remove(must func(*Publication) bool) (out []*Publication) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, target := range h.targets {
		out = append(out, h.takeOut(target, must)...)
	}
	return out
}

func (h *heldTargets) takeOut(target *heldTarget, must func(*Publication) bool) []*Publication {
	var out, rest []*Publication
	for _, p := range target.waiting {
		if must(p) {
			h.count -= p.countsAsWaiting()
			out = append(out, p)
		} else {
			rest = append(rest, p)
		}
	}
	target.waiting = rest
	return out
}

// has reports whether a target is held.
func (h *heldTargets) has(to bridge.Target) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.targets[to] != nil
}

// size returns the number of waiting messages that could be set aside.
func (h *heldTargets) size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count
}

// A Held is a target that takes no messages at present.
type Held struct {
	Target       bridge.Target
	Reason       Reason
	Messages     int       // waiting for the target, or being tried
	Since        time.Time // when it was first held, perhaps by an earlier session
	Problem      string    // why it takes none
	Fix          string    // how to fix it
	DeadLetterAt time.Time // when the first of the messages goes to the dead queue, if the target's state does not change; zero: none does
}

// A Reason says why a target takes no messages.
type Reason string

// The reasons.
const (
	Full    Reason = "full"       // it nacks
	Missing Reason = "unroutable" // it does not exist
	Stuck   Reason = "stuck"      // it does not confirm
)

// list returns the held targets.
func (h *heldTargets) list() []Held {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]Held, 0, len(h.targets))
	for to, target := range h.targets {
		out = append(out, Held{
			Target: to, Reason: target.reason, Messages: len(target.waiting) + target.trying, Since: target.since,
			Problem: target.problem.text, Fix: target.problem.fix, DeadLetterAt: h.deadLetterAt(to, target),
		})
	}
	return out
}

// deadLetterAt returns when the first waiting message goes to the dead queue, if the state of the
// target does not change; zero if none does.
func (h *heldTargets) deadLetterAt(to bridge.Target, target *heldTarget) (first time.Time) {
	for _, p := range target.waiting {
		var at time.Time
		r := p.Retries
		switch {
		case r == nil, h.holdKeys && p.Ordered:
			continue
		case target.reason == Missing:
			at = h.missedSince(target, p)
			if at.IsZero() {
				continue
			}
			at = at.Add(h.unroutable)
		case target.reason == Full && to.Exchange != "" && r.Nacks > 0:
			at = r.NackedAt
			for n := r.Nacks; n < int64(h.copies); n++ {
				at = at.Add(nackPause(n))
			}
		default:
			continue
		}
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}
