package engine

import "sync/atomic"

// An Outcome is the end of a delivery that is to be acked.
type Outcome int

// The outcomes.
const (
	Unfinished Outcome = iota
	Handled            // the handler's effects are committed
	Duplicate          // its effects were committed before
	Stale              // later effects were committed before
	Kept               // the message is stored, to be handled when its turn comes
	Doubtful           // the message is stored, and it is unknown whether its effect was done
)

// Stats are idempotency.Stats. Both have the same fields, so that one can be converted to the
// other.
type Stats struct {
	Handled, Duplicates, Stale, Kept, Doubtful, DeadLettered, HandedBack, LeftUnacked, RetriedLater, Released, FailedAttempts, NotAcked, Purged, PurgePasses uint64
}

// Counters are the Stats of an Engine.
type Counters struct {
	Handled, Duplicates, Stale, Kept, Doubtful, DeadLettered, HandedBack, LeftUnacked, RetriedLater, Released, FailedAttempts, NotAcked, Purged, PurgePasses atomic.Uint64
}

// Of returns the counter of an outcome.
func (c *Counters) Of(ended Outcome) *atomic.Uint64 {
	switch ended {
	case Handled:
		return &c.Handled
	case Stale:
		return &c.Stale
	case Kept:
		return &c.Kept
	case Doubtful:
		return &c.Doubtful
	default:
		return &c.Duplicates
	}
}

// Stats returns the counts so far.
func (e *Engine) Stats() Stats {
	return Stats{
		Handled:        e.Count.Handled.Load(),
		Duplicates:     e.Count.Duplicates.Load(),
		Stale:          e.Count.Stale.Load(),
		Kept:           e.Count.Kept.Load(),
		Doubtful:       e.Count.Doubtful.Load(),
		DeadLettered:   e.Count.DeadLettered.Load(),
		HandedBack:     e.Count.HandedBack.Load(),
		LeftUnacked:    e.Count.LeftUnacked.Load(),
		RetriedLater:   e.Count.RetriedLater.Load(),
		Released:       e.Count.Released.Load(),
		FailedAttempts: e.Count.FailedAttempts.Load(),
		NotAcked:       e.Count.NotAcked.Load(),
		Purged:         e.Count.Purged.Load(),
		PurgePasses:    e.Count.PurgePasses.Load(),
	}
}
