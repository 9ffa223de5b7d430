package faults

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/tests/faults/world"
)

// The test runs one plan after the other, each with the next seed, until the time is up. It prints
// the totals so far after each.
func TestLongRunUnderFaultsLosesAndInventsNothing(t *testing.T) {
	long(t, traffic{workers: 4, pause: 30 * time.Millisecond, steps: *stepsFlag})
}

// With order keys, nothing is out of order either.
func TestLongRunUnderFaultsKeepsTheOrderOfEachKey(t *testing.T) {
	long(t, traffic{workers: 4, pause: 100 * time.Millisecond, keys: 12, steps: *stepsFlag})
}

// long runs plans for -faults.for, and returns the totals of all runs.
func long(t *testing.T, traffic traffic) (totals world.Totals) {
	t.Helper()
	if *forFlag == 0 {
		t.Skip("asked for with -faults.for 1h, and -timeout")
	}
	began, counts, runs := time.Now(), make(world.Counts), 0
	for seed := firstSeed(); time.Since(began) < *forFlag; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			more, sum := run(t, *databaseFlag, seed, traffic)
			for kind, n := range more {
				counts[kind] += n
			}
			totals.Add(sum)
			runs++
		})
		t.Logf("after %v, %d seeds, failed: %t: %v", time.Since(began).Round(time.Second), runs, t.Failed(), totals)
		t.Logf("%v", totals.Untouched)
		injected := 0
		for _, kind := range slices.Sorted(maps.Keys(counts)) {
			t.Logf("%6d  %s", counts[kind], kind)
			injected += counts[kind]
		}
		t.Logf("%6d  faults in all", injected)
	}
	return totals
}
