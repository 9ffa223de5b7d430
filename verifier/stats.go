package verifier

import "sync/atomic"

// Stats counts a verifier's results since New, over all its sessions.
type Stats struct {
	Forwarded    int64 // confirmed by the broker at the target; repeated ones count again
	Dropped      int64 // settled as rolled back, or absent because forwarded before
	DeadLettered int64 // in the dead queue
	SetAside     int64 // waited for long, and were moved to the waiting queue, where verifiers take them up again
	Restaged     int64 // carried by their rows, and staged: their first copies were lost, or there were none
	Swept        int64 // orphan rows removed
	Abandoned    int64 // rows of delivered messages that could not be deleted and are given up: see State.Undeleted
	Sessions     int64 // started sessions; more than one means that errors ended the earlier ones
}

type counters struct {
	forwarded, dropped, deadLettered, setAside, restaged, swept, abandoned, sessions atomic.Int64
}

func (c *counters) read() Stats {
	return Stats{
		Forwarded:    c.forwarded.Load(),
		Dropped:      c.dropped.Load(),
		DeadLettered: c.deadLettered.Load(),
		SetAside:     c.setAside.Load(),
		Restaged:     c.restaged.Load(),
		Swept:        c.swept.Load(),
		Abandoned:    c.abandoned.Load(),
		Sessions:     c.sessions.Load(),
	}
}
