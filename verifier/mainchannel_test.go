package verifier

import (
	"slices"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

// flight is a main channel with one message in flight for each of these targets,
// published so long ago.
func flight(now time.Time, ages map[string]time.Duration) (*mainChannel, map[string]*attempt) {
	c := newFlight()
	attempts := make(map[string]*attempt)
	for key, age := range ages {
		a := c.begin(&publication{to: bridge.Target{RoutingKey: key}})
		a.at = now.Add(-age)
		attempts[key] = a
	}
	return c, attempts
}

func TestATargetIsBehindWhenOthersOfLaterAreConfirmed(t *testing.T) {
	const patience = time.Minute
	now := time.Now()
	c, attempts := flight(now, map[string]time.Duration{"old": 10 * time.Second, "young": behindAfter / 2, "other": 0})
	if behind, _, silent := c.look(now, patience); len(behind) > 0 || silent {
		t.Errorf("behind are %v, silent %t, though nothing was confirmed", behind, silent)
	}
	c.confirmed(attempts["other"], nil)
	if behind, _, silent := c.look(now, patience); silent || !slices.Equal(behind, []bridge.Target{{RoutingKey: "old"}}) {
		t.Errorf("behind are %v, silent %t", behind, silent)
	}
}

func TestWhatIsGivenUpIsNobodysAnyMore(t *testing.T) {
	const patience = time.Minute
	now := time.Now()
	c, attempts := flight(now, map[string]time.Duration{"old": 2 * patience, "young": 0})
	if out := c.giveUp(now, patience, false); len(out) != 1 || out[0] != attempts["old"].p {
		t.Errorf("given up are %d", len(out))
	}
	if c.confirmed(attempts["old"], nil) || c.forget(attempts["old"]) {
		t.Error("a late confirm counts although the message is on its way elsewhere")
	}
	if _, _, silent := c.look(now.Add(2*patience), patience); !silent {
		t.Error("a channel without confirms is not silent")
	}
	c.excuse(now.Add(2 * patience))
	if _, _, silent := c.look(now.Add(2*patience), patience); silent {
		t.Error("a blocked channel is silent")
	}
	if out := c.giveUp(now, patience, true); len(out) != 1 || !c.empty() {
		t.Errorf("given up are %d of what is left", len(out))
	}
}
