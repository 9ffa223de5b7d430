package verifier

import (
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge/inspect"
)

func TestATransactionIsNamedAgainAfterTwiceAsLong(t *testing.T) {
	var n named
	start := time.Now()
	at := func(d time.Duration, h inspect.Holder) bool { return n.due(h, start.Add(d), time.Second) }
	one, another := inspect.Holder{Session: "1", Since: start}, inspect.Holder{Session: "2", Since: start}
	var got []time.Duration
	for d := time.Duration(0); d < 20*time.Second; d += 500 * time.Millisecond {
		if at(d, one) {
			got = append(got, d/time.Second)
		}
	}
	want := []time.Duration{0, 1, 3, 7, 15}
	if len(got) != len(want) {
		t.Fatalf("named at %v s, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("named at %v s, want %v", got, want)
		}
	}
	if !at(16*time.Second, another) {
		t.Error("another transaction is not named")
	}
	if later := (inspect.Holder{Session: "1", Since: start.Add(time.Hour)}); !at(16*time.Second, later) {
		t.Error("a later transaction of the same session is not named")
	}
	for i := range 3 * explainLimit {
		at(0, inspect.Holder{Since: start.Add(time.Duration(i))})
	}
	if len(n) > explainLimit {
		t.Errorf("%d are remembered", len(n))
	}
}
