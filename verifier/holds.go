package verifier

import (
	"log/slog"
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
type holds struct {
	log        *slog.Logger
	unroutable time.Duration // how long a missing target is retried
	more       chan struct{} // woken when another message waits

	mu      sync.Mutex
	targets map[bridge.Target]*hold
	count   int
}

type hold struct {
	reason  HoldReason
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
}

const (
	maxBurst = 1024
	// remembered is how long a target stays held without a message: those that were
	// set aside come again.
	remembered = time.Minute
	// maxRemembered bounds how many targets stay held without a message.
	maxRemembered = 1000
)

// takes tells whether p's target is held. Then p waits, unless it is for the audit queue.
func (h *holds) takes(p *publication) (held bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	target := h.targets[p.to]
	if target == nil || p.trial {
		return false
	}
	if p.course != audit {
		h.wait(target, p)
	}
	return true
}

func (h *holds) wait(target *hold, p *publication) {
	target.waiting = append(target.waiting, p)
	h.count += p.crowds()
	wake(h.more)
	if m := p.forwards(); m != nil && m.line == nil && target.reason == Missing && m.unroutableSince.IsZero() {
		m.unroutableSince = time.Now()
	}
}

// failed has p wait, whose target did not take it.
func (h *holds) failed(p *publication, reason HoldReason) {
	h.mu.Lock()
	defer h.mu.Unlock()
	target := h.hold(p.to, reason, "message_id", p.id())
	target.silent = target.silent || reason == Stuck || p.slow && reason == Full
	target.refuted = reason == Missing
	target.works = false
	h.wait(target, p)
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
	h.hold(to, Stuck).silent = true
	return true
}

// hold holds a target, if it is not held yet, for a reason.
func (h *holds) hold(to bridge.Target, reason HoldReason, why ...any) *hold {
	target := h.targets[to]
	if target == nil {
		target = &hold{backoff: newBackOff(50*time.Millisecond, 5*time.Second), burst: 1}
		target.due = time.Now().Add(target.backoff.NextBackOff())
		h.targets[to] = target
		said := append([]any{"target", to.String(), "reason", string(reason), "text", reason.String()}, why...)
		if reason == Missing {
			said = append(said, "dead_letter_after", h.unroutable, "mend", "make the exchange, the queue or the binding")
		}
		h.log.Warn("target is held", said...)
	}
	target.reason = reason
	return target
}

// ended says that p needs no further attempt: its target has it, or it takes another course.
func (h *holds) ended(p *publication, placed bool) {
	if !p.trial {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tried(p, placed)
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
func (h *holds) tick(now time.Time) (again, dead []*publication) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for to, target := range h.targets {
		if target.trying > 0 {
			continue
		}
		if !target.missingSince.IsZero() {
			dead = append(dead, h.takeOut(target, forwarded(func(m *message) bool { return h.givesUp(target, m, now) }))...)
			target.refuted = false
		}
		letGo := target.works && (len(target.waiting) <= target.burst || target.burst == maxBurst)
		if len(target.waiting) == 0 {
			letGo = letGo || now.Sub(target.due) > remembered || len(h.targets) > maxRemembered
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
		if len(target.waiting) == 0 {
			continue
		}
		if now.Before(target.due) {
			continue
		}
		n := min(target.burst, len(target.waiting))
		if target.silent {
			n = 1
		}
		for _, p := range target.waiting[:n] {
			h.count -= p.crowds()
			p.trial = true
			p.alone = target.silent
			again = append(again, p)
		}
		target.waiting = target.waiting[n:]
		target.trying = n
	}
	return again, dead
}

// givesUp tells whether a message has been unroutable for too long, when an attempt has just
// found its target missing.
//
// Messages of an order key come here one after the other, so what counts for them is the
// target's time, and any attempt since they were received.
func (h *holds) givesUp(target *hold, m *message, now time.Time) bool {
	if m.line != nil {
		since := target.missingSince
		if m.unroutableSince.After(since) {
			since = m.unroutableSince
		}
		return now.Sub(since) >= h.unroutable && !m.received.After(target.missingAt)
	}
	if !target.refuted {
		return false
	}
	if m.unroutableSince.IsZero() { // it was held for another reason
		m.unroutableSince = now
	}
	return now.Sub(m.unroutableSince) >= h.unroutable
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
		out = append(out, HeldTarget{to, target.reason, len(target.waiting) + target.trying})
	}
	return out
}

func newBackOff(first, most time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = first, most
	return b
}
