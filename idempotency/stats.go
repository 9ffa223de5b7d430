package idempotency

// Stats counts deliveries since a strategy was made, of this package, of package pending or of
// package versions. Every delivery whose call has returned is in exactly one of the first nine
// counts. The counts only grow.
type Stats struct {
	Handled      uint64 // the handler ran and its transaction committed
	Duplicates   uint64 // the key had been claimed before; the handler's effects exist already
	Stale        uint64 // of versions.Latest only: the entity had a later version already
	Kept         uint64 // stored, to be handled later: by package pending, or by versions.Ordered until the versions before it have come
	Doubtful     uint64 // of pending.Effects.AtMostOnce only: the effect was started, and its end is unknown
	DeadLettered uint64 // rejected to the dead-letter exchange, or published to the dead queue, or stored by Options.DeadLetter
	HandedBack   uint64 // requeued, to be delivered again
	LeftUnacked  uint64 // left to the end of the channel, because the receiver stops
	RetriedLater uint64 // an attempt failed, and a copy is in a retry queue (Options.Queues)

	Released       uint64 // of versions.Ordered only: kept messages that were handled when their turn came
	FailedAttempts uint64 // attempts that count as the handler's failure, panics among them
	NotAcked       uint64 // acks that did not reach the broker; also counted by their outcome above

	Purged      uint64 // claims that were deleted because of their age
	PurgePasses uint64 // how often the purge has reached the end of the consumer's claims
}
