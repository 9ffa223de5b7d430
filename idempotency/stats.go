package idempotency

import "sync/atomic"

// Stats counts what became of deliveries since the Guard was made. Every call of
// Handle that has returned is in exactly one of the first four; all of them only
// grow.
type Stats struct {
	Handled      uint64 // the handler ran and its transaction committed
	Duplicates   uint64 // the key had been claimed before; the handler's effects are there already
	DeadLettered uint64 // rejected to the dead-letter exchange, or stored by Options.DeadLetter
	HandedBack   uint64 // requeued, to be delivered again

	FailedAttempts uint64 // attempts that count as the handler's failure, panics among them
	NotAcked       uint64 // acks that did not reach the broker; also counted by their outcome above
}

type counters struct {
	handled, duplicates, deadLettered, handedBack, failedAttempts, notAcked atomic.Uint64
}

// Stats returns the counts so far.
func (g *Guard) Stats() Stats {
	return Stats{
		Handled:        g.count.handled.Load(),
		Duplicates:     g.count.duplicates.Load(),
		DeadLettered:   g.count.deadLettered.Load(),
		HandedBack:     g.count.handedBack.Load(),
		FailedAttempts: g.count.failedAttempts.Load(),
		NotAcked:       g.count.notAcked.Load(),
	}
}
