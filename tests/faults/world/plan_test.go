package world_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/twoqueue/twoqueue/tests/faults/world"
)

func TestASeedDecidesAllOfAPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		steps := rapid.IntRange(1, 50).Draw(t, "steps")
		processes := rapid.IntRange(1, 12).Draw(t, "processes")
		plan := world.NewPlan(seed, steps, processes)
		if again := world.NewPlan(seed, steps, processes); plan.String() != again.String() {
			t.Errorf("the same seed gives\n%v\nand\n%v", plan, again)
		}
		for _, step := range plan.Steps {
			for _, f := range step.Faults {
				if f.Process < 0 || f.Process >= processes {
					t.Errorf("%v: there are %d processes", f, processes)
				}
			}
		}
	})
}

func TestAPlanOfFourteenStepsHasEveryKindOfFault(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		plan := world.NewPlan(rapid.Uint64().Draw(t, "seed"), len(world.FaultKinds), 8)
		seen := make(map[world.FaultKind]bool)
		for _, step := range plan.Steps {
			seen[step.Faults[0].Kind] = true
		}
		if len(seen) != len(world.FaultKinds) {
			t.Errorf("only %d kinds of faults", len(seen))
		}
	})
}
