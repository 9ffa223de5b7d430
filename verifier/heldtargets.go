package verifier

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/twoqueue/twoqueue/bridge"
)

// heldTargets contains the targets that take no messages now, with the messages that wait for them:
// a full queue (nack), a missing one (return, 404), a stuck one. Each such target is tried with
// backoff, first with one message, after a success with twice as many. It delays no other target
// (rule 8 of package bridge). It is released as soon as all its waiting messages may be tried
// together, not only when none waits: messages of an order key come one after the other, so with
// them one always waits.
//
// An exchange that nacks a message may have given it to its other queues; only the full queue lacks
// it. So the first attempt of a message at such an exchange does not wait (heldTarget.exempts),
// each message is retried after pauses of its own (retryAt), and given up after Options.Copies
// attempts.
type heldTargets struct {
	log        *slog.Logger
	unroutable time.Duration // how long a missing target is retried
	copies     int           // Options.Copies
	more       chan struct{} // woken when another message waits

	mu      sync.Mutex
	targets map[bridge.Target]*heldTarget
	count   int
}

type heldTarget struct {
	reason  HoldReason
	problem problem
	since   time.Time // when the target was first held
	waiting []*publication
	backoff *backoff.ExponentialBackOff
	due     time.Time
	burst   int // how many messages are tried together
	trying  int // how many of these are under way
	failed  bool
	placed  bool // at least one of them was placed
	refuted bool // the last attempt found the target missing
	works   bool // the last attempt succeeded
	// silent: a message to the target had no answer for long, and none has been placed since. On a
	// shared channel the next trial would delay other messages: for a quorum queue without a leader
	// RabbitMQ answers after a minute, with a nack, and blocks the channel until then.
	silent bool

	missingSince time.Time // zero if the target existed when it was last tried
	missingAt    time.Time // when the target was last found missing
	remembered   bool      // an earlier session held it
}

// A problem says why a target takes no messages, and how to fix it.
type problem struct{ text, mend string }

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

// newHeldTargets begins with the targets that the last session held.
func newHeldTargets(o *Options, more chan struct{}, held map[bridge.Target]*heldTarget) *heldTargets {
	return &heldTargets{log: o.Logger, unroutable: o.Unroutable, copies: o.Copies, more: more, targets: held}
}

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

// enqueueIfHeld reports whether p's target is held. If so, p waits there, unless it is for the
// audit queue.
func (h *heldTargets) enqueueIfHeld(p *publication) (held bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	target := h.targets[p.to]
	if target == nil || p.trial || target.exempts(p) {
		return false
	}
	if p.course != audit {
		h.enqueue(target, p)
	}
	return true
}

// exempts reports whether p does not wait although its target is held: p is the first attempt at an
// exchange that nacks, and the exchange may have other queues for it.
func (t *heldTarget) exempts(p *publication) bool {
	m := p.forwards()
	return t.reason == Full && !t.silent && p.to.Exchange != "" && m != nil && m.nacks == 0
}

// retryAt returns when a nacked message is published to its exchange again.
func (m *message) retryAt() time.Time { return m.nackedAt.Add(nackPause(m.nacks)) }

// nackPause returns the pause after a number of nacks: 1 s, 3 s, 9 s and so on, at most 2 min.
func nackPause(nacks int64) time.Duration {
	const most = 2 * time.Minute
	pause := time.Second
	for range min(nacks-1, 10) {
		pause = min(3*pause, most)
	}
	return pause
}

func (h *heldTargets) enqueue(target *heldTarget, p *publication) {
	target.waiting = append(target.waiting, p)
	h.count += p.crowds()
	wake(h.more)
	if m := p.forwards(); m != nil && m.keyOrder == nil && target.reason == Missing && m.unroutableSince.IsZero() {
		m.unroutableSince = target.unroutableSince(m, time.Now())
	}
}

// unroutableSince returns when a message began to wait for its missing target. If an earlier
// session has handed the message back by its end, the time continues from the target's, but begins
// no earlier than the message was staged.
func (t *heldTarget) unroutableSince(m *message, now time.Time) time.Time {
	if !t.remembered || !m.delivery.Redelivered || t.missingSince.IsZero() {
		return now
	}
	since := t.missingSince
	if m.staged.StagedAt.After(since) {
		since = m.staged.StagedAt
	}
	if since.After(now) { // by the sender's clock
		return now
	}
	return since
}

// enqueueFailed queues p at its target, which did not take it.
func (h *heldTargets) enqueueFailed(p *publication, reason HoldReason, why problem) {
	h.mu.Lock()
	defer h.mu.Unlock()
	target := h.holdTarget(p.to, reason, why, "message_id", p.id())
	target.silent = target.silent || reason == Stuck || p.slow && reason == Full
	target.refuted = reason == Missing
	target.works = false
	h.enqueue(target, p)
	h.noteFailure(target, p, reason)
}

// nackedOut is enqueueFailed for a message that is given up: it is not queued.
func (h *heldTargets) nackedOut(p *publication, why problem) {
	h.mu.Lock()
	defer h.mu.Unlock()
	target := h.holdTarget(p.to, Full, why, "message_id", p.id())
	target.silent = target.silent || p.slow
	target.refuted, target.works = false, false
	h.noteFailure(target, p, Full)
}

// noteFailure updates the target after a failed attempt.
func (h *heldTargets) noteFailure(target *heldTarget, p *publication, reason HoldReason) {
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
func (h *heldTargets) holdTarget(to bridge.Target, reason HoldReason, why problem, about ...any) *heldTarget {
	target := h.targets[to]
	if target == nil {
		now := time.Now()
		target = &heldTarget{since: now, backoff: newBackOff(50*time.Millisecond, 5*time.Second), burst: 1}
		target.due = now.Add(target.backoff.NextBackOff())
		h.targets[to] = target
		said := append([]any{"target", to.String(), "reason", string(reason), "text", why.text, "mend", why.mend}, about...)
		if reason == Missing {
			said = append(said, "dead_letter_after", h.unroutable)
		}
		h.log.Warn("target is held", said...)
	}
	target.reason, target.problem = reason, why
	return target
}

// noteEnd notes that p needs no further attempt: the target has it, or p was taken out or ended
// otherwise.
func (h *heldTargets) noteEnd(p *publication, placed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch target := h.targets[p.to]; {
	case p.trial:
		h.endTrial(p, placed)
	case placed && target != nil && target.reason == Full && p.to.Exchange != "" && !target.silent:
		target.works, target.due = true, time.Now() // a first attempt (exempts) shows it as well
	}
}

// endTrial counts the end of one trial. After the last one of a burst it decides when to try next,
// and with how many. A message that was refused for its own sake says nothing about its target.
func (h *heldTargets) endTrial(p *publication, placed bool) {
	p.trial = false
	target := h.targets[p.to]
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
		if m := p.forwards(); m != nil {
			m.unroutableSince = time.Time{}
		}
	}
}

// tick returns publications to retry, and publications to give up because they have been unroutable
// for too long (givesUp). It releases a working target when all its waiting messages may be tried
// together, and any other target some time after no message waits for it.
//
// At most soloChannels silent targets are tried at a time, the longest due first. The messages
// of the others wait here, where they can be set aside.
func (h *heldTargets) tick(now time.Time) (again, dead []*publication) {
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
			for _, p := range h.takeOut(target, forwarded(func(m *message) bool { return h.givesUp(target, m, now) })) {
				p.problem = target.problem
				dead = append(dead, p)
			}
			target.refuted = false
		}
		letGo := target.works && (len(target.waiting) <= target.burst || target.burst == maxBurst)
		if len(target.waiting) == 0 {
			letGo = letGo || now.Sub(target.due) > rememberFor || len(h.targets) > maxRemembered
		}
		if letGo {
			for _, p := range target.waiting {
				h.count -= p.crowds()
			}
			again = append(again, target.waiting...)
			delete(h.targets, to)
			h.log.Info("target is no longer held", "target", to.String(), "works", target.works)
			continue
		}
		switch {
		case len(target.waiting) == 0:
		case target.reason == Full && to.Exchange != "" && !target.works:
			if n := target.bringForward(now); n == 0 || target.silent && now.Before(target.due) {
				continue
			} else if target.silent {
				due = append(due, target)
			} else {
				again = append(again, h.startTrials(target, min(n, maxBurst))...)
			}
		case now.Before(target.due):
		case target.silent:
			due = append(due, target)
		default:
			again = append(again, h.startTrials(target, min(target.burst, len(target.waiting)))...)
		}
	}
	slices.SortFunc(due, func(a, b *heldTarget) int { return a.due.Compare(b.due) })
	for _, target := range due[:min(len(due), max(0, soloChannels-trying))] {
		again = append(again, h.startTrials(target, 1)...)
	}
	return again, dead
}

// bringForward moves the publications whose own pause is over to the front, and counts them.
func (t *heldTarget) bringForward(now time.Time) (due int) {
	isDue := func(p *publication) bool {
		m := p.forwards()
		return m == nil || !now.Before(m.retryAt())
	}
	slices.SortStableFunc(t.waiting, func(a, b *publication) int {
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
func (h *heldTargets) startTrials(target *heldTarget, n int) []*publication {
	trials := target.waiting[:n]
	for _, p := range trials {
		h.count -= p.crowds()
		p.trial, p.solo = true, target.silent
	}
	target.waiting = target.waiting[n:]
	target.trying = n
	return trials
}

// givesUp reports whether a message has been unroutable for too long, after an attempt that found
// its target missing.
//
// Messages of an order key arrive here one after the other. So for them the target's missing time
// counts, and any attempt since the message was received.
func (h *heldTargets) givesUp(target *heldTarget, m *message, now time.Time) bool {
	if m.keyOrder != nil {
		return now.Sub(h.missedSince(target, m)) >= h.unroutable && !m.received.After(target.missingAt)
	}
	if !target.refuted {
		return false
	}
	if m.unroutableSince.IsZero() { // its target was held for another reason
		m.unroutableSince = now
	}
	return now.Sub(m.unroutableSince) >= h.unroutable
}

// missedSince returns since when the target of a message counts as missing.
func (h *heldTargets) missedSince(target *heldTarget, m *message) time.Time {
	if m.keyOrder != nil && target.missingSince.After(m.unroutableSince) {
		return target.missingSince
	}
	return m.unroutableSince
}

// removeMessages removes and returns the messages for which must returns true, the oldest first.
// Publications to the verifier's own queues stay.
func (h *heldTargets) removeMessages(must func(*message) bool) (out []*message) {
	for _, p := range h.remove(forwarded(must)) {
		out = append(out, p.message)
	}
	return out
}

// removePublications removes all publications of messages that come again, dead letters too.
func (h *heldTargets) removePublications(of func(*message) bool) {
	h.remove(func(p *publication) bool { return p.message != nil && of(p.message) })
}

// forwarded adapts must to publications: it holds for publications that forward such a message.
func forwarded(must func(*message) bool) func(*publication) bool {
	return func(p *publication) bool {
		m := p.forwards()
		return m != nil && must(m)
	}
}

func (h *heldTargets) remove(must func(*publication) bool) (out []*publication) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, target := range h.targets {
		out = append(out, h.takeOut(target, must)...)
	}
	return out
}

func (h *heldTargets) takeOut(target *heldTarget, must func(*publication) bool) []*publication {
	var out, rest []*publication
	for _, p := range target.waiting {
		if must(p) {
			h.count -= p.crowds()
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

// list returns the held targets.
func (h *heldTargets) list() []HeldTarget {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]HeldTarget, 0, len(h.targets))
	for to, target := range h.targets {
		out = append(out, HeldTarget{
			Target: to, Reason: target.reason, Messages: len(target.waiting) + target.trying, Since: target.since,
			Problem: target.problem.text, Mend: target.problem.mend, DeadLetterAt: h.deadLetterAt(to, target),
		})
	}
	return out
}

// deadLetterAt returns when the first waiting message goes to the dead queue, if the state of the
// target does not change; zero if none does.
func (h *heldTargets) deadLetterAt(to bridge.Target, target *heldTarget) (first time.Time) {
	for _, p := range target.waiting {
		var at time.Time
		m := p.forwards()
		switch {
		case m == nil:
			continue
		case target.reason == Missing:
			at = h.missedSince(target, m)
			if at.IsZero() {
				continue
			}
			at = at.Add(h.unroutable)
		case target.reason == Full && to.Exchange != "" && m.nacks > 0:
			at = m.nackedAt
			for n := m.nacks; n < int64(h.copies); n++ {
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

func newBackOff(first, most time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = first, most
	return b
}
