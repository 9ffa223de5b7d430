package engine

import (
	"fmt"
	"testing"
)

// In an outage many messages lose their connection. They must not displace the failed attempts of
// others, and each kind is bounded.
func TestLostConnectionsDisplaceNoFailedAttempt(t *testing.T) {
	var f failures
	const failed = 100
	for n := range failed {
		f.put(fmt.Sprint("failed ", n), tally{failed: 2, lost: 7})
	}
	for n := range 2 * maxFailures {
		f.put(fmt.Sprint("lost ", n), tally{lost: 1})
	}
	if len(f.lost) > maxFailures {
		t.Errorf("%d messages are remembered", len(f.lost))
	}
	for n := range failed {
		if got := f.take(fmt.Sprint("failed ", n)); got.failed != 2 || got.lost != 7 {
			t.Errorf("the failed attempts of message %d are %+v", n, got)
		}
	}
	if len(f.counted) > 0 {
		t.Errorf("%d messages are remembered although they were taken", len(f.counted))
	}
}
