package verifier

import (
	"sync"
	"time"
)

const (
	// longestStay and shortestStay bound how long messages of the waiting queue stay here while others
	// wait behind them. (tend runs every 50 ms.)
	longestStay  = time.Second
	shortestStay = 50 * time.Millisecond
	// oftenRound and rareRound: each message of the waiting queue should come round again after a time
	// between these.
	oftenRound = time.Second
	rareRound  = 4 * time.Second
)

// A stayTime is how long messages of the waiting queue stay here, after their lookup, if others wait
// behind them. The more messages circulate, the shorter the stay is: a message whose transaction has
// ended may be behind very many of a transaction that stays open.
type stayTime struct {
	mu      sync.Mutex
	shorter time.Duration // the stay is longestStay minus this
	changed time.Time
}

func (t *stayTime) length() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return longestStay - t.shorter
}

// adapt is called when a message comes again from the waiting queue, with the duration of its round.
// A change of the stay affects only later rounds, so the stay changes at most once per stay.
func (t *stayTime) adapt(now time.Time, round time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	length := longestStay - t.shorter
	if now.Sub(t.changed) < length {
		return
	}
	switch {
	case round > rareRound:
		length = max(length/2, shortestStay)
	case round < oftenRound:
		length = min(length*2, longestStay)
	default:
		return
	}
	t.shorter, t.changed = longestStay-length, now
}
