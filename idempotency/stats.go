package idempotency

import "sync/atomic"

// Stats counts what happened to deliveries since the Guard was made. Every call of Handle,
// HandleTx, AtMostOnce or Accept that has returned is in exactly one of the first nine. Work
// and Resume count the messages that they end once more, as Handled, Kept or Doubtful. The
// counts only grow.
type Stats struct {
	Handled      uint64 // the handler ran and its transaction committed
	Duplicates   uint64 // the key had been claimed before; the handler's effects are there already
	Stale        uint64 // of Latest only: the entity had a later version already
	Kept         uint64 // stored, to be handled later: by Accept, for Resume, or by Ordered until the versions before it have come
	Doubtful     uint64 // of AtMostOnce only: the effect was started, and has not been heard of, or has not told how it ended
	DeadLettered uint64 // rejected to the dead-letter exchange, or stored by Options.DeadLetter
	HandedBack   uint64 // requeued, to be delivered again
	LeftUnacked  uint64 // left to the end of the channel, because the receiver stops
	RetriedLater uint64 // an attempt failed, and a copy is in a retry queue (Options.Queues)

	Released       uint64 // of Ordered only: kept messages whose turn has come, and which were handled
	FailedAttempts uint64 // attempts that count as the handler's failure, panics among them
	NotAcked       uint64 // acks that did not reach the broker; also counted by their outcome above

	Purged      uint64 // claims that were forgotten because of their age
	PurgePasses uint64 // how often the purge has come to the end of the consumer's claims
}

type counters struct {
	handled, duplicates, stale, kept, doubtful, released, deadLettered, handedBack, leftUnacked, retriedLater, failedAttempts, notAcked, purged, purgePasses atomic.Uint64
}

// outcome returns the counter of a delivery's end.
func (c *counters) outcome(ended outcome) *atomic.Uint64 {
	switch ended {
	case handled:
		return &c.handled
	case stale:
		return &c.stale
	case kept:
		return &c.kept
	case doubtful:
		return &c.doubtful
	default:
		return &c.duplicates
	}
}

// Stats returns the counts so far.
func (g *Guard) Stats() Stats {
	return Stats{
		Handled:        g.count.handled.Load(),
		Duplicates:     g.count.duplicates.Load(),
		Stale:          g.count.stale.Load(),
		Kept:           g.count.kept.Load(),
		Doubtful:       g.count.doubtful.Load(),
		DeadLettered:   g.count.deadLettered.Load(),
		HandedBack:     g.count.handedBack.Load(),
		LeftUnacked:    g.count.leftUnacked.Load(),
		RetriedLater:   g.count.retriedLater.Load(),
		Released:       g.count.released.Load(),
		FailedAttempts: g.count.failedAttempts.Load(),
		NotAcked:       g.count.notAcked.Load(),
		Purged:         g.count.purged.Load(),
		PurgePasses:    g.count.purgePasses.Load(),
	}
}
