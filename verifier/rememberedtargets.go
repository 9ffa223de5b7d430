package verifier

import (
	"maps"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

// rememberedTargets are the held targets and suspect exchanges that a verifier remembers from one
// session to the next. Without them each session would have to find them again, at the expense of
// other messages. maxRemembered and maxSuspects bound them. They contain no messages: the broker
// delivers these again.
type rememberedTargets struct {
	held     map[bridge.Target]*heldTarget
	suspects map[string]bool
	at       time.Time // when the session ended
}

// remember stores the targets of a session that has ended.
func (c *rememberedTargets) remember(f *forwarder, now time.Time) {
	c.held, c.at = f.held.forNextSession(), now
	f.mu.Lock()
	defer f.mu.Unlock()
	c.suspects = maps.Clone(f.suspects)
}

// recall returns the targets for the next session. The time without a session does not count,
// because no target was tried.
func (c *rememberedTargets) recall(now time.Time) (held map[bridge.Target]*heldTarget, suspects map[string]bool) {
	suspects = maps.Clone(c.suspects)
	if suspects == nil {
		suspects = make(map[string]bool)
	}
	return postponed(c.held, now.Sub(c.at)), suspects
}
