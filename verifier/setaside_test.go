package verifier

import (
	"testing"
	"time"
)

func TestAMessageOfTheWaitingQueueStaysTheShorterTheLongerTheQueueIs(t *testing.T) {
	var turns turn
	now := time.Now()
	hear := func(round time.Duration) time.Duration {
		now = now.Add(turns.length())
		turns.adapt(now, round)
		return turns.length()
	}
	if got := turns.length(); got != longestTurn {
		t.Errorf("at first %v", got)
	}
	for range 10 {
		hear(2 * rareRound)
	}
	if got := turns.length(); got != shortestTurn {
		t.Errorf("while they come round too rarely %v", got)
	}
	if got := hear((oftenRound + rareRound) / 2); got != shortestTurn {
		t.Errorf("when they come round as they should it changes to %v", got)
	}
	turns.adapt(now.Add(shortestTurn), 0)
	turns.adapt(now.Add(shortestTurn), 0) // rounds within one turn count once
	if got := turns.length(); got != 2*shortestTurn {
		t.Errorf("after one short round %v", got)
	}
	for range 10 {
		hear(0)
	}
	if got := turns.length(); got != longestTurn {
		t.Errorf("while they come round often %v", got)
	}
}
