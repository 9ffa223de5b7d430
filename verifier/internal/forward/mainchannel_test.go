package forward

import (
	"slices"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

// flight returns a main channel with one message in flight to each of these targets, published that
// long ago.
func flight(now time.Time, ages map[string]time.Duration) (*mainChannel, map[string]*attempt) {
	c := newUnconnected()
	attempts := make(map[string]*attempt)
	for key, age := range ages {
		a := c.begin(&Publication{To: bridge.Target{RoutingKey: key}})
		a.at = now.Add(-age)
		attempts[key] = a
	}
	return c, attempts
}

func TestATargetIsBehindWhenLaterMessagesOfOthersAreConfirmed(t *testing.T) {
	const patience = time.Minute
	now := time.Now()
	c, attempts := flight(now, map[string]time.Duration{"old": 10 * time.Second, "young": behindAfter / 2, "other": 0})
	if behind, _, silent := c.check(now, patience); len(behind) > 0 || silent {
		t.Errorf("%v are behind, silent %t, though nothing was confirmed", behind, silent)
	}
	c.confirmed(attempts["other"], nil)
	if behind, _, silent := c.check(now, patience); silent || !slices.Equal(behind, []bridge.Target{{RoutingKey: "old"}}) {
		t.Errorf("%v are behind, silent %t", behind, silent)
	}
}

// RabbitMQ's credit flow can stop all confirms of a connection within less than that time.
func TestASilencedBurstShowsTheTargetsBehindAndTheUnreadMessages(t *testing.T) {
	const patience = time.Minute
	now := time.Now()
	c, attempts := flight(now, map[string]time.Duration{"stuck": behindAfter / 2, "first": behindAfter / 4, "next": 0})
	c.confirmed(attempts["first"], nil)
	later := now.Add(2 * behindAfter)
	if behind, _, _ := c.check(later, patience); len(behind) > 0 || len(c.unread(later)) > 0 {
		t.Errorf("%v are behind, with a message each", behind)
	}
	for range silencingBurst {
		c.begin(&Publication{To: bridge.Target{RoutingKey: "stuck"}}).at = now
	}
	if behind, _, _ := c.check(now, patience); len(behind) > 0 || len(c.unread(now)) > 0 {
		t.Errorf("%v are behind, while confirms come", behind)
	}
	if behind, _, silent := c.check(later, patience); silent || !slices.Equal(behind, []bridge.Target{{RoutingKey: "stuck"}}) {
		t.Errorf("%v are behind, silent %t", behind, silent)
	}
	c.begin(&Publication{To: bridge.Target{RoutingKey: "young"}}).at = later
	if out := c.unread(later); !slices.Equal(out, []*Publication{attempts["next"].p}) {
		t.Errorf("not read are %d", len(out))
	}
	if c.confirmed(attempts["next"], nil) {
		t.Error("a late confirm counts although the message is on its way elsewhere")
	}
}

// If a channel has no confirms, it is unknown which publications the broker has read.
func TestNothingIsUnreadWithoutAConfirm(t *testing.T) {
	now := time.Now()
	c, _ := flight(now, map[string]time.Duration{"one": 2 * behindAfter, "other": behindAfter})
	if out := c.unread(now.Add(5 * behindAfter)); len(out) > 0 {
		t.Errorf("not read are %d", len(out))
	}
}

func TestALateConfirmOfAGivenUpPublicationDoesNotCount(t *testing.T) {
	const patience = time.Minute
	now := time.Now()
	c, attempts := flight(now, map[string]time.Duration{"old": 2 * patience, "young": 0})
	if out := c.giveUp(now, patience, false); len(out) != 1 || out[0] != attempts["old"].p {
		t.Errorf("%d are given up", len(out))
	}
	if c.confirmed(attempts["old"], nil) || c.withdraw(attempts["old"]) {
		t.Error("a late confirm counts although the message is on its way elsewhere")
	}
	if _, _, silent := c.check(now.Add(2*patience), patience); !silent {
		t.Error("a channel without confirms is not silent")
	}
	c.restartTimes(now.Add(2 * patience))
	if _, _, silent := c.check(now.Add(2*patience), patience); silent {
		t.Error("a blocked channel is silent")
	}
	if out := c.giveUp(now, patience, true); len(out) != 1 || !c.empty() {
		t.Errorf("%d of the rest are given up", len(out))
	}
}
