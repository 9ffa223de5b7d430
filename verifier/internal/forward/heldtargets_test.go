package forward

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

func testTargets(unroutableFor time.Duration) *heldTargets {
	return &heldTargets{
		log:        slog.New(slog.DiscardHandler),
		unroutable: unroutableFor,
		more:       make(chan struct{}, 1),
		targets:    make(map[bridge.Target]*heldTarget),
	}
}

// tickedTargets remembers the publications that takeDue has returned.
type tickedTargets struct {
	*heldTargets
	again []*Publication
	dead  []givenUp
}

func newTickedTargets(unroutableFor time.Duration) *tickedTargets {
	return &tickedTargets{heldTargets: testTargets(unroutableFor)}
}

func (h *tickedTargets) takeDue(now time.Time) {
	again, dead := h.heldTargets.takeDue(now)
	h.again, h.dead = append(h.again, again...), append(h.dead, dead...)
}

func publicationsTo(queue string, n int) []*Publication {
	out := make([]*Publication, n)
	for i := range out {
		out[i] = &Publication{To: bridge.Target{RoutingKey: queue}, Retries: new(Retries)}
	}
	return out
}

// heldFor holds a target for which n publications wait; the first of them has just failed.
func heldFor(unroutableFor time.Duration, why Reason, n int) (*tickedTargets, []*Publication) {
	h, waiting := newTickedTargets(unroutableFor), publicationsTo("target", n)
	h.enqueueFailed(waiting[0], why, problem{})
	for _, p := range waiting[1:] {
		h.enqueueIfHeld(p)
	}
	return h, waiting
}

// later is a time after any pause between attempts.
func later() time.Time { return time.Now().Add(time.Hour) }

func TestAHeldTargetIsTriedWithOneMessageThenWithTwiceAsMany(t *testing.T) {
	h, _ := heldFor(time.Hour, Full, 7)
	if !h.enqueueIfHeld(publicationsTo("target", 1)[0]) {
		t.Fatal("a message for a held target is not kept")
	}
	if h.enqueueIfHeld(publicationsTo("other", 1)[0]) {
		t.Error("another target is held as well")
	}
	for _, want := range []int{1, 2, 4, 1} {
		h.again = nil
		h.takeDue(later())
		if len(h.again) != want {
			t.Fatalf("%d are tried, want %d", len(h.again), want)
		}
		h.takeDue(later())
		if len(h.again) != want {
			t.Fatal("more are tried before the last attempt has ended")
		}
		for _, p := range h.again {
			h.noteEnd(p, true)
		}
	}
	h.takeDue(later())
	if len(h.targets) != 0 || h.size() != 0 {
		t.Errorf("%d targets and %d messages are left", len(h.targets), h.size())
	}
}

func TestAFailedAttemptStartsAgainWithOne(t *testing.T) {
	h, _ := heldFor(time.Hour, Full, 7)
	h.takeDue(later()) // one
	h.noteEnd(h.again[0], true)
	h.again = nil
	h.takeDue(later()) // two
	h.noteEnd(h.again[0], true)
	h.enqueueFailed(h.again[1], Full, problem{})
	h.again = nil
	h.takeDue(time.Now())
	if len(h.again) != 0 {
		t.Fatal("tried again at once after a failure")
	}
	h.takeDue(later())
	if len(h.again) != 1 {
		t.Errorf("%d are tried after a failure, want 1", len(h.again))
	}
	if h.size() != 4 {
		t.Errorf("%d wait, want 4: two are safe, one is under way", h.size())
	}
}

// A trial on a shared channel would make its other messages wait for the answer as well.
func TestATargetThatLeftAMessageUnansweredIsTriedAloneUntilItWorks(t *testing.T) {
	for name, c := range map[string]struct {
		reason Reason
		slow   bool
		alone  bool
	}{
		"nacked at once":         {Full, false, false},
		"nacked after a while":   {Full, true, true},
		"returned at once":       {Missing, false, false},
		"returned after a while": {Missing, true, false}, // no queue has blocked the channel
		"never confirmed":        {Stuck, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTickedTargets(2 * time.Hour)
			waiting := publicationsTo("target", 9)
			waiting[0].slow = c.slow
			h.enqueueFailed(waiting[0], c.reason, problem{})
			for _, p := range waiting[1:] {
				h.enqueueIfHeld(p)
			}
			trial := func() *Publication {
				h.again = nil
				h.takeDue(later())
				return h.again[0]
			}
			p := trial()
			if p.solo != c.alone {
				t.Fatalf("the first trial goes alone: %t", p.solo)
			}
			p.slow = false
			h.enqueueFailed(p, Full, problem{})
			if p = trial(); p.solo != c.alone {
				t.Errorf("after a nack the next trial goes alone: %t", p.solo)
			}
			h.noteEnd(p, false)
			if p = trial(); p.solo != c.alone || len(h.again) != 1 {
				t.Errorf("after one that was refused for itself %d are tried, alone: %t", len(h.again), p.solo)
			}
			h.noteEnd(p, true)
			if p = trial(); p.solo || len(h.again) != 2 {
				t.Errorf("it works, and %d are tried, alone: %t", len(h.again), p.solo)
			}
			h.enqueueFailed(publicationsTo("target", 1)[0], Stuck, problem{}) // one that was on its way for long
			for _, p := range h.again {
				h.noteEnd(p, true)
			}
			h.enqueueFailed(publicationsTo("target", 1)[0], Stuck, problem{})
			if p = trial(); !p.solo || len(h.again) != 1 {
				t.Errorf("it is silent again, and %d are tried, alone: %t", len(h.again), p.solo)
			}
		})
	}
}

// The next message of each key comes when the previous one is safe, so that one always waits.
func TestATargetThatWorksIsHeldNoLongerAlthoughTheNextOfEachKeyWaits(t *testing.T) {
	for _, keys := range []int{5, 3 * maxBurst} {
		h, _ := heldFor(time.Hour, Full, keys)
		rounds, passed := 0, 0
		for ; rounds < 100 && len(h.targets) > 0; rounds++ {
			h.again = nil
			h.takeDue(later())
			for _, p := range h.again {
				passed++
				h.noteEnd(p, true)
				h.enqueueIfHeld(publicationsTo("target", 1)[0])
			}
		}
		t.Logf("%d keys: %d messages in %d rounds", keys, passed, rounds)
		if rounds > 15 || h.size() != 0 {
			t.Errorf("%d keys: after %d rounds %d messages wait", keys, rounds, h.size())
		}
	}
}

func TestATargetWhoseMessagesWereSetAsideStaysHeld(t *testing.T) {
	h := newTickedTargets(time.Hour)
	h.enqueueFailed(publicationsTo("full", 1)[0], Full, problem{})
	all := func(*Publication) bool { return true }
	if n := len(h.remove(all)); n != 1 {
		t.Fatalf("%d leave", n)
	}
	h.takeDue(time.Now().Add(rememberFor / 2))
	if !h.enqueueIfHeld(publicationsTo("full", 1)[0]) {
		t.Fatal("the next message for it is not kept")
	}
	h.takeDue(time.Now().Add(rememberFor / 2))
	h.noteEnd(h.again[0], true)
	h.takeDue(time.Now())
	if len(h.targets) != 0 {
		t.Error("it is held after a success")
	}
}

func TestHeldTargetsWithoutMessagesAreForgotten(t *testing.T) {
	h := newTickedTargets(time.Hour)
	for i := range maxRemembered + 10 {
		h.enqueueFailed(publicationsTo(fmt.Sprint(i), 1)[0], Missing, problem{})
	}
	h.remove(func(*Publication) bool { return true })
	h.takeDue(time.Now())
	if len(h.targets) != maxRemembered {
		t.Errorf("%d are remembered", len(h.targets))
	}
	h.takeDue(later())
	if len(h.targets) != 0 {
		t.Errorf("%d are remembered for ever", len(h.targets))
	}
}

// A message is given up only when an attempt has just shown that its target is still missing: its
// time alone is not enough.
func TestUnroutableIsGivenUpOnlyAfterAnAttempt(t *testing.T) {
	h := newTickedTargets(time.Minute)
	old, young := publicationsTo("missing", 1)[0], publicationsTo("missing", 1)[0]
	old.Retries.UnroutableSince = time.Now().Add(-time.Hour)
	h.enqueueFailed(young, Missing, problem{})
	h.takeDue(time.Now()) // the attempt that has just failed
	if !h.enqueueIfHeld(old) {
		t.Fatal("not kept")
	}
	h.takeDue(time.Now())
	if len(h.dead) != 0 {
		t.Fatal("given up without an attempt")
	}
	h.takeDue(later())
	h.enqueueFailed(h.again[0], Missing, problem{})
	h.takeDue(time.Now())
	if len(h.dead) != 1 || h.dead[0].Publication != old {
		t.Errorf("%d are given up, want the old one", len(h.dead))
	}
	if h.size() != 1 {
		t.Errorf("%d wait, want the young one", h.size())
	}
}

func TestADeadLetterIsNeverGivenUp(t *testing.T) {
	h := newTickedTargets(time.Nanosecond)
	p := publicationsTo("staging.dead", 1)[0]
	p.Retries = nil
	h.enqueueFailed(p, Missing, problem{})
	h.takeDue(later())
	if len(h.dead) != 0 {
		t.Error("given up")
	}
}

// The time of a missing target begins when it was found missing, even if it was held for another
// reason before.
func TestTheTimeOfAMissingTargetBeginsWhenItIsFoundMissing(t *testing.T) {
	h, _ := heldFor(time.Minute, Full, 2)
	h.takeDue(later())
	h.enqueueFailed(h.again[0], Missing, problem{})
	h.takeDue(time.Now())
	if len(h.dead) != 0 {
		t.Fatalf("%d are given up at the first sign that their target is missing", len(h.dead))
	}
	h.again = nil
	h.takeDue(later())
	h.enqueueFailed(h.again[0], Missing, problem{})
	h.takeDue(time.Now().Add(2 * time.Minute))
	if len(h.dead) != 2 {
		t.Errorf("%d are given up after their time, want both", len(h.dead))
	}
}

func TestATargetThatWasThereBetweenIsMissingAnew(t *testing.T) {
	for name, thereBetween := range map[string]func(h *tickedTargets, trial *Publication){
		"took one": func(h *tickedTargets, trial *Publication) { h.noteEnd(trial, true) },
		"was full": func(h *tickedTargets, trial *Publication) { h.enqueueFailed(trial, Full, problem{}) },
	} {
		h := newTickedTargets(time.Minute)
		waiting := publicationsTo("target", 3)
		waiting[1].Retries.UnroutableSince = time.Now().Add(-time.Hour)
		h.enqueueFailed(waiting[0], Missing, problem{})
		h.enqueueIfHeld(waiting[1])
		h.enqueueIfHeld(waiting[2])
		h.takeDue(time.Now())
		if len(h.dead) != 1 {
			t.Fatalf("%s: %d are given up, want the oldest", name, len(h.dead))
		}
		for _, p := range waiting {
			p.Retries.UnroutableSince = time.Now().Add(-time.Hour)
		}
		h.targets[waiting[0].To].foundMissing = false
		h.takeDue(later())
		thereBetween(h, h.again[0])
		h.again = nil
		h.takeDue(later())
		h.enqueueFailed(h.again[0], Missing, problem{})
		h.takeDue(time.Now())
		if len(h.dead) != 1 {
			t.Errorf("%s: %d are given up, although their target was there a moment ago", name, len(h.dead)-1)
		}
	}
}

// The next message of a key comes when the previous one was given up. It has its target's time, not
// its own, but an attempt since it was received must have failed.
func TestMessagesOfAKeyAreGivenUpByTheTimeOfTheirTarget(t *testing.T) {
	h := newTickedTargets(time.Minute)
	of := func(received time.Time) *Publication {
		p := publicationsTo("missing", 1)[0]
		p.Ordered, p.Received = true, received
		return p
	}
	gone := 0
	givenUp := func(now time.Time) int {
		before := gone
		h.takeDue(now)
		gone = len(h.dead)
		return gone - before
	}
	now := time.Now()
	first := of(now)
	h.enqueueFailed(first, Missing, problem{})
	if givenUp(time.Now()) != 0 {
		t.Fatal("given up at the first attempt")
	}
	h.takeDue(now.Add(time.Minute / 2))
	h.enqueueFailed(h.again[len(h.again)-1], Missing, problem{})
	since := h.targets[first.To].missingSince
	late := since.Add(time.Minute)
	if givenUp(late) != 1 {
		t.Fatal("the first is not given up after its time")
	}
	for i := range 500 {
		if !h.enqueueIfHeld(of(now)) {
			t.Fatal("not held")
		}
		h.targets[first.To].due = late.Add(time.Hour)
		if givenUp(late) != 1 {
			t.Fatalf("the next one but %d is not given up", i)
		}
	}
	young := of(h.targets[first.To].missingAt.Add(time.Second))
	h.enqueueIfHeld(young)
	if givenUp(late) != 0 {
		t.Error("one that came after the last attempt is given up")
	}
	held := of(now) // with HoldKeys
	held.Retries.UnroutableSince = late
	h.enqueueIfHeld(held)
	if givenUp(late.Add(time.Minute/2)) != 0 {
		t.Error("one that holds its key is given up again at once")
	}
	if givenUp(late.Add(time.Minute)) != 1 {
		t.Error("one that holds its key is not given up again")
	}
}

func TestTheTimeOfATargetBeginsAnewWhenItWasThere(t *testing.T) {
	h := newTickedTargets(time.Minute)
	p := publicationsTo("missing", 1)[0]
	p.Ordered = true
	h.enqueueFailed(p, Missing, problem{})
	h.targets[p.To].due = time.Now()
	h.targets[p.To].missingSince = time.Now().Add(-time.Minute / 2)
	h.takeDue(time.Now())
	h.enqueueFailed(h.again[0], Full, problem{})
	h.targets[p.To].due = time.Now()
	h.takeDue(time.Now())
	h.enqueueFailed(h.again[1], Missing, problem{})
	h.takeDue(time.Now().Add(time.Minute / 2))
	if len(h.dead) != 0 {
		t.Error("given up, although its target was there a moment ago")
	}
}

func TestTheLogDatesTheDeadLettersOfAMissingTarget(t *testing.T) {
	for reason, want := range map[Reason]string{
		Missing: `reason=unroutable text="the queue does not exist" fix="declare the queue, or send to another one" message_id="" dead_letter_after=1m0s`,
		Full:    `reason=full text="the queue does not exist" fix="declare the queue, or send to another one" message_id=""` + "\n",
	} {
		var log bytes.Buffer
		h := testTargets(time.Minute)
		h.log = slog.New(slog.NewTextHandler(&log, nil))
		h.enqueueFailed(publicationsTo("gone", 1)[0], reason, noQueue)
		if said := log.String(); !strings.Contains(said, want) {
			t.Errorf("the log says %s, not %s", said, want)
		}
	}
}

// The next session remembers the state of held targets, without their messages. The time without a
// session does not count, because no attempt was made.
func TestTheNextSessionKnowsTheHeldTargets(t *testing.T) {
	h, _ := heldFor(time.Minute, Missing, 3)
	target := bridge.Target{RoutingKey: "target"}
	began := time.Now().Add(-40 * time.Second)
	h.targets[target].missingSince = began
	h.targets[target].silent = true
	f := &Forwarder{held: h.heldTargets, suspects: map[string]bool{"missing": true}}
	ended := time.Now()
	c := f.Remember(ended)
	h.enqueueFailed(publicationsTo("target", 1)[0], Full, problem{}) // a late report of the ended session

	held, suspects := c.recall(ended.Add(time.Hour))
	next := newTickedTargets(time.Minute)
	next.targets = held
	got := next.targets[target]
	if got == nil || got.reason != Missing || !got.silent || got.problem != h.targets[target].problem && got.problem.text != "" {
		t.Fatalf("held: %+v", got)
	}
	if !suspects["missing"] {
		t.Errorf("suspects %v", suspects)
	}
	if !got.missingSince.Equal(began.Add(time.Hour)) {
		t.Errorf("missing since %v, an hour passed without a session", got.missingSince)
	}
	if next.size() != 0 || got.trying != 0 || len(got.waiting) != 0 {
		t.Errorf("messages of the ended session wait: %+v", got)
	}

	// The time of a message that comes again continues; a new message's time begins.
	again, fresh := publicationsTo("target", 1)[0], publicationsTo("target", 1)[0]
	again.Redelivered = true
	got.missingSince, got.missingAt = began, began
	for _, p := range []*Publication{again, fresh} {
		if !next.enqueueIfHeld(p) {
			t.Fatal("the target is not held")
		}
	}
	if !again.Retries.UnroutableSince.Equal(began) || fresh.Retries.UnroutableSince.Before(ended) {
		t.Errorf("unroutable since %v and %v", again.Retries.UnroutableSince, fresh.Retries.UnroutableSince)
	}
}

func TestNoMoreSilentTargetsAreTriedThanThereAreChannels(t *testing.T) {
	h := newTickedTargets(time.Hour)
	for i := range 3 * soloChannels {
		h.enqueueFailed(publicationsTo(fmt.Sprint(i), 1)[0], Stuck, noConfirm)
	}
	h.takeDue(later())
	if len(h.again) != soloChannels || h.size() != 2*soloChannels {
		t.Fatalf("%d are tried, %d wait", len(h.again), h.size())
	}
	h.noteEnd(h.again[0], true)
	h.takeDue(later())
	if len(h.again) != soloChannels+1 {
		t.Errorf("%d are tried after one trial has ended", len(h.again))
	}
}

// An exchange that nacks may have other queues. Each message's first attempt waits for nothing;
// further attempts follow after pauses of its own, independent of the other messages.
func TestAnExchangeThatNacksKeepsNoFirstAttemptWaiting(t *testing.T) {
	h := newTickedTargets(time.Hour)
	exchange := bridge.Target{Exchange: "events"}
	to := func() *Publication {
		return &Publication{To: exchange, Retries: new(Retries)}
	}
	nack := func(p *Publication) {
		p.Retries.Nacks, p.Retries.NackedAt = p.Retries.Nacks+1, time.Now()
		h.enqueueFailed(p, Full, fullQueue)
	}
	first, second := to(), to()
	for _, p := range []*Publication{first, second} {
		if h.enqueueIfHeld(p) {
			t.Fatal("a first attempt waits")
		}
		nack(p)
	}
	second.Retries.Nacks, second.Retries.NackedAt = 3, time.Now().Add(-5*time.Second) // due after 9 s
	h.takeDue(time.Now().Add(2 * time.Second))
	if len(h.again) != 1 || h.again[0] != first {
		t.Fatalf("%d are tried, want the one whose pause is over", len(h.again))
	}
	nack(first)
	if again := to(); h.enqueueIfHeld(again) {
		t.Error("a first attempt waits after a failed trial")
	} else {
		h.noteEnd(again, true)
	}
	h.again = nil
	h.takeDue(time.Now())
	if len(h.again) != 1 {
		t.Errorf("%d are tried after the exchange has taken a message, want 1", len(h.again))
	}
	if queue := (bridge.Target{RoutingKey: "full"}); !func() bool {
		p := &Publication{To: queue, Retries: new(Retries)}
		h.enqueueFailed(p, Full, fullQueue)
		return h.enqueueIfHeld(&Publication{To: queue, Retries: new(Retries)})
	}() {
		t.Error("a message for a queue that is full does not wait")
	}
}

// A message that holds its key never goes to the dead queue.
func TestNoDeadLetterIsAnnouncedForAMessageThatHoldsItsKey(t *testing.T) {
	for _, holdKeys := range []bool{false, true} {
		h, p := testTargets(time.Minute), publicationsTo("target", 1)[0]
		h.holdKeys, p.Ordered = holdKeys, true
		h.enqueueFailed(p, Missing, noQueue)
		if at := h.list()[0].DeadLetterAt; at.IsZero() != holdKeys {
			t.Errorf("HoldKeys %t: announced for %v", holdKeys, at)
		}
	}
}
