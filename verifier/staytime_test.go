package verifier

import (
	"testing"
	"time"
)

func TestAMessageOfTheWaitingQueueStaysTheShorterTheLongerTheQueueIs(t *testing.T) {
	var turns stayTime
	now := time.Now()
	hear := func(round time.Duration) time.Duration {
		now = now.Add(turns.length())
		turns.adapt(now, round)
		return turns.length()
	}
	if got := turns.length(); got != longestStay {
		t.Errorf("at first %v", got)
	}
	for range 10 {
		hear(2 * rareRound)
	}
	if got := turns.length(); got != shortestStay {
		t.Errorf("while they come round too rarely %v", got)
	}
	if got := hear((oftenRound + rareRound) / 2); got != shortestStay {
		t.Errorf("when they come round as they should it changes to %v", got)
	}
	turns.adapt(now.Add(shortestStay), 0)
	turns.adapt(now.Add(shortestStay), 0) // rounds within one turn count once
	if got := turns.length(); got != 2*shortestStay {
		t.Errorf("after one short round %v", got)
	}
	for range 10 {
		hear(0)
	}
	if got := turns.length(); got != longestStay {
		t.Errorf("while they come round often %v", got)
	}
}
