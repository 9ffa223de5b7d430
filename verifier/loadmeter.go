package verifier

import (
	"sync"
	"time"
)

// A loadMeter measures how fast messages arrive, and decides how long a stage should gather before
// it acts. Cost is per burst (measured: the broker's work for a message in bursts of hundreds is a
// third of its work in bursts of five), so gathering saves more the more messages there are. When
// few come, none waits.
type loadMeter struct {
	mu    sync.Mutex
	since time.Time
	count int
	rate  float64 // messages per second in the last full window
}

const (
	loadWindow = 50 * time.Millisecond
	idleRate   = 500.0  // messages per second up to which nothing gathers
	fullRate   = 1500.0 // and from which on a stage gathers for the longest
)

func (l *loadMeter) add(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.roll(time.Now())
	l.count += n
}

// gather returns how long to gather now, at most longest.
func (l *loadMeter) gather(longest time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.roll(time.Now())
	load := (l.rate - idleRate) / (fullRate - idleRate)
	return time.Duration(min(max(load, 0), 1) * float64(longest))
}

// roll ends the window if it is over.
func (l *loadMeter) roll(now time.Time) {
	elapsed := now.Sub(l.since)
	if elapsed < loadWindow {
		return
	}
	l.rate = float64(l.count) / elapsed.Seconds()
	l.since, l.count = now, 0
}
