package reconcile

import (
	"fmt"
	"testing"
)

// Each case is a run in which a and b were committed.
func TestCompareFindsExactlyTheViolations(t *testing.T) {
	for _, c := range []struct {
		copies map[string]int
		want   string
	}{
		{map[string]int{"a": 1, "b": 1}, "{[] [] map[]}"},
		{map[string]int{"a": 1}, "{[b] [] map[]}"},
		{map[string]int{"a": 1, "b": 1, "c": 1}, "{[] [c] map[]}"},
		{map[string]int{"a": 1, "b": 2}, "{[] [] map[b:2]}"},
		{map[string]int{"b": 2, "c": 3}, "{[a] [c] map[b:2 c:3]}"},
	} {
		if got := fmt.Sprint(Compare(map[string]bool{"a": true, "b": true}, c.copies)); got != c.want {
			t.Errorf("of %v the difference is %s, must be %s", c.copies, got, c.want)
		}
	}
}
