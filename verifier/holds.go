package verifier

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/twoqueue/twoqueue/bridge"
)

// Messages wait in holds while their target takes none: a full queue
// (nack), a missing one (return, 404), a stuck one. Each such target is tried with
// backoff, first with one message, after a success with twice as many, and holds
// up nobody else (rule 8 of package bridge). Once all that wait may be tried together it is
// held no longer: messages of an order key come one after the other, so that with them
// somebody always waits.
//
// An exchange that nacks has given the message to its other queues, perhaps, and keeps it from
// one that is full. So its first attempt makes no message wait (hold.passes), each message is
// tried again after pauses of its own (retryAt), and given up after Options.Copies attempts.
type holds struct {
	log        *slog.Logger
	unroutable time.Duration // how long a missing target is retried
	copies     int           // Options.Copies
	more       chan struct{} // woken when another message waits

	mu      sync.Mutex
	targets map[bridge.Target]*hold
	count   int
}

type hold struct {
	reason  HoldReason
	problem problem
	since   time.Time // when it began
	waiting []*publication
	backoff *backoff.ExponentialBackOff
	due     time.Time
	burst   int // how many are tried together
	trying  int // how many of them are under way
	failed  bool
	placed  bool // one of them at least
	refuted bool // the last attempt found the target missing
	works   bool // the last attempt succeeded
	// silent: a message to it was without an answer for long, and none has been placed since. On
	// a channel that others use, the next trial would hold them up: for a quorum queue without a
	// leader RabbitMQ answers after a minute, with a nack, and keeps the channel waiting until
	// then.
	silent bool

	missingSince time.Time // zero if it was there when it was last tried
	missingAt    time.Time // when it was last found missing
	remembered   bool      // it was held by an earlier session
}

// A problem says in words why a target takes nothing, and what to do.
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
	// rememberFor is how long a target stays held without a message: messages that
	// were set aside come again.
	rememberFor = time.Minute
	// maxRemembered bounds how many targets stay held without a message.
	maxRemembered = 1000
)

// newHolds begins with the targets that the last session held.
func newHolds(o *Options, more chan struct{}, held map[bridge.Target]*hold) *holds {
	return &holds{log: o.Logger, unroutable: o.Unroutable, copies: o.Copies, more: more, targets: held}
}

// keep returns the held targets for the next session, without the messages. What an old
// session's channels still report stays in h.
func (h *holds) keep() map[bridge.Target]*hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	kept := make(map[bridge.Target]*hold)
	for to, target := range h.targets {
		if len(kept) == maxRemembered {
			break
		}
		next := *target.backoff
		kept[to] = &hold{
			reason: target.reason, problem: target.problem, since: target.since, silent: target.silent,
			backoff: &next, due: target.due, burst: 1,
			missingSince: target.missingSince, missingAt: target.missingAt, remembered: true,
		}
	}
	return kept
}

// postponed returns held targets whose times are later. It leaves the old ones as they are.
func postponed(held map[bridge.Target]*hold, by time.Duration) map[bridge.Target]*hold {
	out := make(map[bridge.Target]*hold)
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

// takes tells whether p's target is held. Then p waits, unless it is for the audit queue.
func (h *holds) takes(p *publication) (held bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	target := h.targets[p.to]
	if target == nil || p.trial || target.passes(p) {
		return false
	}
	if p.course != audit {
		h.wait(target, p)
	}
	return true
}

// passes tells whether p does not wait although its target is held: it is the first attempt at
// an exchange that nacks, which may have other queues for it.
func (t *hold) passes(p *publication) bool {
	m := p.forwards()
	return t.reason == Full && !t.silent && p.to.Exchange != "" && m != nil && m.nacks == 0
}

// retryAt is when a message that was nacked is published to its exchange again.
func (m *message) retryAt() time.Time { return m.nackedAt.Add(nackPause(m.nacks)) }

// nackPause is the pause after so many nacks: 1 s, 3 s, 9 s and so on, at most 2 min.
func nackPause(nacks int64) time.Duration {
	const most = 2 * time.Minute
	pause := time.Second
	for range min(nacks-1, 10) {
		pause = min(3*pause, most)
	}
	return pause
}

func (h *holds) wait(target *hold, p *publication) {
	target.waiting = append(target.waiting, p)
	h.count += p.crowds()
	wake(h.more)
	if m := p.forwards(); m != nil && m.line == nil && target.reason == Missing && m.unroutableSince.IsZero() {
		m.unroutableSince = target.unroutableSince(m, time.Now())
	}
}

// unroutableSince is when a message began to wait for its missing target. One that a session
// hands back by its end goes on counting where it was: with the target, but not before it was
// staged.
func (t *hold) unroutableSince(m *message, now time.Time) time.Time {
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

// failed has p wait, whose target did not take it.
func (h *holds) failed(p *publication, reason HoldReason, why problem) {
	h.mu.Lock()
	defer h.mu.Unlock()
	target := h.hold(p.to, reason, why, "message_id", p.id())
	target.silent = target.silent || reason == Stuck || p.slow && reason == Full
	target.refuted = reason == Missing
	target.works = false
	h.wait(target, p)
	h.refused(target, p, reason)
}

// nackedOut is failed for a message that is given up.
func (h *holds) nackedOut(p *publication, why problem) {
	h.mu.Lock()
	defer h.mu.Unlock()
	target := h.hold(p.to, Full, why, "message_id", p.id())
	target.silent = target.silent || p.slow
	target.refuted, target.works = false, false
	h.refused(target, p, Full)
}

// refused keeps what an attempt has told of the target.
func (h *holds) refused(target *hold, p *publication, reason HoldReason) {
	if reason == Missing {
		target.missingAt = time.Now()
		if target.missingSince.IsZero() {
			target.missingSince = target.missingAt
		}
	} else {
		target.exists()
	}
	if p.trial {
		target.failed = true
		h.tried(p, false)
	}
}

// behind holds a target that does not confirm while others do; it returns false if it is
// held already. What is in flight for it may still arrive.
func (h *holds) behind(to bridge.Target) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.targets[to] != nil {
		return false
	}
	h.hold(to, Stuck, noConfirm).silent = true
	return true
}

// hold holds a target, if it is not held yet, for a reason.
func (h *holds) hold(to bridge.Target, reason HoldReason, why problem, about ...any) *hold {
	target := h.targets[to]
	if target == nil {
		now := time.Now()
		target = &hold{since: now, backoff: newBackOff(50*time.Millisecond, 5*time.Second), burst: 1}
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

// ended says that p needs no further attempt: its target has it, or it takes another course.
func (h *holds) ended(p *publication, placed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch target := h.targets[p.to]; {
	case p.trial:
		h.tried(p, placed)
	case placed && target != nil && target.reason == Full && p.to.Exchange != "" && !target.silent:
		target.works, target.due = true, time.Now() // a first attempt (passes) shows it as well
	}
}

// tried counts the end of one trial; after the last one of a burst it is decided
// when and how many to try next. One that was refused for itself tells nothing of its target.
func (h *holds) tried(p *publication, placed bool) {
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
	target.exists()
	target.works, target.silent = true, false
	target.backoff.Reset()
	target.burst = min(2*target.burst, maxBurst)
	target.due = time.Now()
}

// exists says that the target is there: should it be missing later, the time of those
// that wait for it begins then.
func (t *hold) exists() {
	t.missingSince = time.Time{}
	for _, p := range t.waiting {
		if m := p.forwards(); m != nil {
			m.unroutableSince = time.Time{}
		}
	}
}

// tick takes out what has been unroutable for too long (givesUp), and those of which another
// attempt is due. It lets go of targets: of those that work when all that wait may be tried
// together, of the others some time after nothing waits for them.
//
// At most carefulChannels silent targets are tried at a time, those first whose trial is due for
// longest. The messages of the others wait here, where they can be set aside.
func (h *holds) tick(now time.Time) (again, dead []*publication) {
	h.mu.Lock()
	defer h.mu.Unlock()
	trying := 0 // silent targets
	var due []*hold
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
				again = append(again, h.try(target, min(n, maxBurst))...)
			}
		case now.Before(target.due):
		case target.silent:
			due = append(due, target)
		default:
			again = append(again, h.try(target, min(target.burst, len(target.waiting)))...)
		}
	}
	slices.SortFunc(due, func(a, b *hold) int { return a.due.Compare(b.due) })
	for _, target := range due[:min(len(due), max(0, carefulChannels-trying))] {
		again = append(again, h.try(target, 1)...)
	}
	return again, dead
}

// bringForward puts those in front whose own pause is over, and counts them.
func (t *hold) bringForward(now time.Time) (due int) {
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

// try takes out the first n for another attempt.
func (h *holds) try(target *hold, n int) []*publication {
	trials := target.waiting[:n]
	for _, p := range trials {
		h.count -= p.crowds()
		p.trial, p.alone = true, target.silent
	}
	target.waiting = target.waiting[n:]
	target.trying = n
	return trials
}

// givesUp tells whether a message has been unroutable for too long, when an attempt has just
// found its target missing.
//
// Messages of an order key come here one after the other, so what counts for them is the
// target's time, and any attempt since they were received.
func (h *holds) givesUp(target *hold, m *message, now time.Time) bool {
	if m.line != nil {
		return now.Sub(h.missedSince(target, m)) >= h.unroutable && !m.received.After(target.missingAt)
	}
	if !target.refuted {
		return false
	}
	if m.unroutableSince.IsZero() { // it was held for another reason
		m.unroutableSince = now
	}
	return now.Sub(m.unroutableSince) >= h.unroutable
}

// missedSince is from when on it counts that a message's target is missing.
func (h *holds) missedSince(target *hold, m *message) time.Time {
	if m.line != nil && target.missingSince.After(m.unroutableSince) {
		return target.missingSince
	}
	return m.unroutableSince
}

// leave takes out the messages for which must says so, the oldest first. What is bound for
// one of the verifier's own queues never leaves.
func (h *holds) leave(must func(*message) bool) (out []*message) {
	for _, p := range h.remove(forwarded(must)) {
		out = append(out, p.message)
	}
	return out
}

// forget takes out all that waits for a message that is over, also on its way to the dead
// queue.
func (h *holds) forget(over func(*message) bool) {
	h.remove(func(p *publication) bool { return p.message != nil && over(p.message) })
}

// forwarded says so of the publications that forward such a message.
func forwarded(must func(*message) bool) func(*publication) bool {
	return func(p *publication) bool {
		m := p.forwards()
		return m != nil && must(m)
	}
}

func (h *holds) remove(must func(*publication) bool) (out []*publication) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, target := range h.targets {
		out = append(out, h.takeOut(target, must)...)
	}
	return out
}

func (h *holds) takeOut(target *hold, must func(*publication) bool) []*publication {
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

// has tells whether a target is held.
func (h *holds) has(to bridge.Target) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.targets[to] != nil
}

// size is how many wait that could be set aside.
func (h *holds) size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count
}

// list lists the targets that take nothing.
func (h *holds) list() []HeldTarget {
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

// deadLetterAt is when the first waiting message goes to the dead queue, if the target stays
// as it is; zero if none does.
func (h *holds) deadLetterAt(to bridge.Target, target *hold) (first time.Time) {
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
