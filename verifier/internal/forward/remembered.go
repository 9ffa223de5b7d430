package forward

import (
	"maps"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

// Remembered has the held targets and suspect exchanges that a verifier remembers from one
// session to the next. Without them each session would have to find them again, at the expense of
// other messages. maxRemembered and maxSuspects bound them. They contain no messages: the broker
// delivers these again.
type Remembered struct {
	held     map[bridge.Target]*heldTarget
	suspects map[string]bool
	at       time.Time // when the session ended
}

// recall returns the targets for the next session. The time without a session does not count,
// because no target was tried.
func (r *Remembered) recall(now time.Time) (held map[bridge.Target]*heldTarget, suspects map[string]bool) {
	suspects = maps.Clone(r.suspects)
	if suspects == nil {
		suspects = make(map[string]bool)
	}
	return postponed(r.held, now.Sub(r.at)), suspects
}
