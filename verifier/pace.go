package verifier

import (
	"sync"
	"time"
)

// A pace measures how fast messages arrive, and decides how long a stage should gather before it
// acts. Cost is per burst (measured: the broker's work for a message in bursts of hundreds is a
// third of its work in bursts of five), so gathering saves more the more messages there are. When
// few come, none waits.
type pace struct {
	mu    sync.Mutex
	since time.Time
	count int
	rate  float64 // messages per second in the last full window
}

const (
	paceWindow = 50 * time.Millisecond
	idleRate   = 500.0  // messages per second up to which nothing gathers
	fullRate   = 1500.0 // and from which on a stage gathers for the longest
)

func (p *pace) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.roll(time.Now())
	p.count += n
}

// gather returns how long to gather now, at most longest.
func (p *pace) gather(longest time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.roll(time.Now())
	load := (p.rate - idleRate) / (fullRate - idleRate)
	return time.Duration(min(max(load, 0), 1) * float64(longest))
}

// roll ends the window if it is over.
func (p *pace) roll(now time.Time) {
	elapsed := now.Sub(p.since)
	if elapsed < paceWindow {
		return
	}
	p.rate = float64(p.count) / elapsed.Seconds()
	p.since, p.count = now, 0
}
