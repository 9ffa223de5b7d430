package verifier

import (
	"maps"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

// culprits are what a verifier knows of targets from one session to the next: without it each
// session would find them out anew, at the expense of the other messages. maxRemembered and
// maxSuspects bound them. Messages are not among them: the broker delivers these again.
type culprits struct {
	held     map[bridge.Target]*hold
	suspects map[string]bool
	at       time.Time // when the session ended
}

// remember takes over what an ended session knows.
func (c *culprits) remember(f *forwarder, now time.Time) {
	c.held, c.at = f.holds.keep(), now
	f.mu.Lock()
	defer f.mu.Unlock()
	c.suspects = maps.Clone(f.suspects)
}

// recall returns what the next session begins with. The time without a session does not count:
// no target was tried.
func (c *culprits) recall(now time.Time) (held map[bridge.Target]*hold, suspects map[string]bool) {
	suspects = maps.Clone(c.suspects)
	if suspects == nil {
		suspects = make(map[string]bool)
	}
	return postponed(c.held, now.Sub(c.at)), suspects
}
