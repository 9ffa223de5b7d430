package world_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/tests/faults/parts"
	"github.com/twoqueue/twoqueue/tests/faults/world"
)

// Each case is a world with one order that has gone its way, changed in one thing.
func TestTheJudgeSeesWhatIsWrongAndNothingElse(t *testing.T) {
	id, other := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	target := parts.TargetName(world.Classic)
	placed := time.Now()
	before, later := placed.Add(-time.Second), placed.Add(time.Second)
	for name, test := range map[string]struct {
		change func(*world.Records)
		want   []world.Kind
	}{
		"as it should be": {func(*world.Records) {}, nil},
		"it comes twice":  {func(r *world.Records) { r.Arrivals = append(r.Arrivals, r.Arrivals[0]) }, nil},
		"it is the next of its key": {func(r *world.Records) {
			r.Orders[other] = world.Placed{Target: target, At: placed, Key: "k", Number: 1}
			r.Orders[id] = world.Placed{Target: target, At: placed, Key: "k", Number: 2}
			first := world.Arrival{ID: other, Target: target, Intact: true}
			r.Arrivals = []world.Arrival{first, r.Arrivals[0], first}
			r.Effects[other] = 1
		}, nil},
		"it arrives before an earlier one of its key": {func(r *world.Records) {
			r.Orders[other] = world.Placed{Target: target, At: placed, Key: "k", Number: 1}
			r.Orders[id] = world.Placed{Target: target, At: placed, Key: "k", Number: 2}
			r.Arrivals = append(r.Arrivals, world.Arrival{ID: other, Target: target, Intact: true})
			r.Effects[other] = 1
		}, []world.Kind{world.Disordered, world.Disordered}},
		"it has a key, does not come, and the staging queue was deleted": {func(r *world.Records) {
			r.Orders[id] = world.Placed{Target: target, At: placed, Key: "k", Number: 1}
			r.Arrivals, r.Effects, r.Rows = nil, nil, []uuid.UUID{id}
			r.Events.StagingDeleted = []world.Deletion{{At: later}}
		}, []world.Kind{world.Lost, world.Orphan}},
		"it does not come": {func(r *world.Records) { r.Arrivals, r.Effects = nil, nil },
			[]world.Kind{world.Lost}},
		"it does not come, and its row is left": {func(r *world.Records) { r.Arrivals, r.Effects, r.Rows = nil, nil, []uuid.UUID{id} },
			[]world.Kind{world.Lost, world.Orphan}},
		"it was in the staging queue that was deleted": {func(r *world.Records) {
			r.Arrivals, r.Effects, r.Rows = nil, nil, []uuid.UUID{id}
			r.Events.StagingDeleted = []world.Deletion{{At: later}}
		}, nil},
		"the staging queue was deleted before it": {func(r *world.Records) {
			r.Arrivals, r.Effects, r.Rows = nil, nil, []uuid.UUID{id}
			r.Events.StagingDeleted = []world.Deletion{{At: before}}
		}, []world.Kind{world.Lost, world.Orphan}},
		"the staging queue was deleted, but its row is gone": {func(r *world.Records) {
			r.Arrivals, r.Effects = nil, nil
			r.Events.StagingDeleted = []world.Deletion{{At: later}}
		}, []world.Kind{world.Lost}},
		"it was in the target queue that was deleted": {func(r *world.Records) {
			r.Arrivals, r.Effects = nil, nil
			r.Committed, r.Forgotten = map[uuid.UUID]time.Time{id: placed}, map[uuid.UUID]time.Time{id: placed}
			r.Events.TargetDeleted = map[string][]world.Deletion{target: {{At: later}}}
		}, nil},
		"it was placed before its target queue was deleted, which never confirmed it": {func(r *world.Records) {
			r.Arrivals, r.Effects = nil, nil
			r.Committed = map[uuid.UUID]time.Time{id: placed}
			r.Events.TargetDeleted = map[string][]world.Deletion{target: {{At: later}}}
		}, []world.Kind{world.Lost}},
		"it was placed before its target queue was deleted, and forwarded after it": {func(r *world.Records) {
			r.Arrivals, r.Effects = nil, nil
			r.Committed, r.Forgotten = map[uuid.UUID]time.Time{id: placed.Add(time.Minute)}, map[uuid.UUID]time.Time{id: placed.Add(time.Minute)}
			r.Events.TargetDeleted = map[string][]world.Deletion{target: {{At: later}}}
		}, []world.Kind{world.Lost}},
		"it was confirmed by its target, its row is left, and the staging queue was deleted": {func(r *world.Records) {
			r.Arrivals, r.Effects, r.Rows = nil, nil, []uuid.UUID{id}
			r.Forgotten = map[uuid.UUID]time.Time{id: placed}
			r.Events.StagingDeleted = []world.Deletion{{At: later}}
		}, []world.Kind{world.Lost}},
		"more were lost with a target queue than it can have held": {func(r *world.Records) {
			r.Committed, r.Forgotten = make(map[uuid.UUID]time.Time), make(map[uuid.UUID]time.Time)
			for range 1000 {
				id := uuid.Must(uuid.NewV7())
				r.Orders[id] = world.Placed{Target: target, At: placed}
				r.Committed[id], r.Forgotten[id] = placed, placed
			}
			r.Held = 80
			r.Events.TargetDeleted = map[string][]world.Deletion{target: {{At: later, Ready: 10}}}
		}, []world.Kind{world.TooMany}},
		"more were lost with the staging queue than it can have held": {func(r *world.Records) {
			for range 1000 {
				id := uuid.Must(uuid.NewV7())
				r.Orders[id] = world.Placed{Target: target, At: placed}
				r.Rows = append(r.Rows, id)
			}
			r.Judging = 1
			r.Events.StagingDeleted = []world.Deletion{{At: later, Ready: 1}}
		}, []world.Kind{world.TooMany}},
		"another target queue was deleted": {func(r *world.Records) {
			r.Arrivals, r.Effects = nil, nil
			r.Committed, r.Forgotten = map[uuid.UUID]time.Time{id: placed}, map[uuid.UUID]time.Time{id: placed}
			r.Events.TargetDeleted = map[string][]world.Deletion{parts.TargetName(world.Quorum): {{At: later}}}
		}, []world.Kind{world.Lost}},
		"one comes that was not committed": {func(r *world.Records) {
			r.Arrivals = append(r.Arrivals, world.Arrival{ID: other, Target: target, Intact: true})
		}, []world.Kind{world.Invented}},
		"one has an effect that never came": {func(r *world.Records) { r.Effects[other] = 1 },
			[]world.Kind{world.Invented}},
		"it has no effect":        {func(r *world.Records) { r.Effects = nil }, []world.Kind{world.NoEffect}},
		"it has two effects":      {func(r *world.Records) { r.Effects[id] = 2 }, []world.Kind{world.TwoEffects}},
		"its content has changed": {func(r *world.Records) { r.Arrivals[0].Intact = false }, []world.Kind{world.Changed}},
		"it comes elsewhere": {func(r *world.Records) { r.Arrivals[0].Target = parts.TargetName(world.Quorum) },
			[]world.Kind{world.Changed}},
		"a message is left staged":    {func(r *world.Records) { r.Staged = 1 }, []world.Kind{world.Leftover}},
		"a message waits to be taken": {func(r *world.Records) { r.Waiting = 1 }, []world.Kind{world.Leftover}},
		"its row is left":             {func(r *world.Records) { r.Rows = []uuid.UUID{id} }, []world.Kind{world.Orphan}},
		"a crash has brought its row back": {func(r *world.Records) {
			r.Rows, r.Forgotten = []uuid.UUID{id}, map[uuid.UUID]time.Time{id: placed}
			r.Events.DatabaseKilled = []time.Time{later}
		}, nil},
		"its row came back long before the crash": {func(r *world.Records) {
			r.Rows, r.Forgotten = []uuid.UUID{id}, map[uuid.UUID]time.Time{id: placed}
			r.Events.DatabaseKilled = []time.Time{placed.Add(time.Hour)}
		}, []world.Kind{world.Orphan}},
		"a proof was killed": {func(r *world.Records) { r.Rows, r.Canaries = []uuid.UUID{other}, map[uuid.UUID]bool{other: true} }, nil},
		"a row is nobody's":  {func(r *world.Records) { r.Rows = []uuid.UUID{other} }, []world.Kind{world.Orphan}},
		"it is dead": {func(r *world.Records) {
			r.Dead = []world.DeadLetter{{ID: id, Reason: "unroutable", Verdict: "committed"}}
		}, []world.Kind{world.WronglyDead}},
		"it is dead, as its target's queue was away for long": {func(r *world.Records) {
			r.Arrivals, r.Effects = nil, nil
			r.Dead = []world.DeadLetter{{ID: id, Reason: "unroutable", Verdict: "committed"}}
			r.Events.TargetDeleted = map[string][]world.Deletion{target: {{At: before, Back: placed.Add(2 * parts.Unroutable)}}}
		}, nil},
		"it is dead, though its target's queue was away for a moment": {func(r *world.Records) {
			r.Arrivals, r.Effects = nil, nil
			r.Dead = []world.DeadLetter{{ID: id, Reason: "unroutable", Verdict: "committed"}}
			r.Events.TargetDeleted = map[string][]world.Deletion{target: {{At: before, Back: later}}}
		}, []world.Kind{world.WronglyDead}},
		"it is dead, though its target's queue was back before it": {func(r *world.Records) {
			r.Arrivals, r.Effects = nil, nil
			r.Dead = []world.DeadLetter{{ID: id, Reason: "unroutable", Verdict: "committed"}}
			r.Events.TargetDeleted = map[string][]world.Deletion{target: {{At: before.Add(-2 * parts.Unroutable), Back: before}}}
		}, []world.Kind{world.WronglyDead}},
		"an uncommitted one is dead": {func(r *world.Records) {
			r.Dead = []world.DeadLetter{{ID: other, Reason: "unroutable", Verdict: "committed"}}
		},
			[]world.Kind{world.WronglyDead}},
		"one for nowhere is dead": {func(r *world.Records) {
			r.Orders[other] = world.Placed{Target: parts.TargetName(world.Nowhere), At: placed}
			r.Dead = []world.DeadLetter{{ID: other, Reason: "unroutable", Verdict: "committed"}}
		}, nil},
		"one for nowhere is dead for the wrong reason": {func(r *world.Records) {
			r.Orders[other] = world.Placed{Target: parts.TargetName(world.Nowhere), At: placed}
			r.Dead = []world.DeadLetter{{ID: other, Reason: "malformed", Verdict: "unknown"}}
		}, []world.Kind{world.WronglyDead}},
		"one for nowhere is gone": {func(r *world.Records) {
			r.Orders[other] = world.Placed{Target: parts.TargetName(world.Nowhere), At: placed}
		},
			[]world.Kind{world.Lost}},
		"a stray is dead": {func(r *world.Records) {
			r.Events.Strays = map[string]world.Stray{"stray": {Reason: "foreign", At: placed}}
			r.Dead = []world.DeadLetter{{Stray: "stray", Reason: "foreign"}}
		}, nil},
		"a stray is gone": {func(r *world.Records) {
			r.Events.Strays = map[string]world.Stray{"stray": {Reason: "foreign", At: placed}}
		}, []world.Kind{world.Lost}},
	} {
		t.Run(name, func(t *testing.T) {
			r := world.Records{
				Orders:   map[uuid.UUID]world.Placed{id: {Target: target, At: placed}},
				Arrivals: []world.Arrival{{ID: id, Target: target, Intact: true}},
				Effects:  map[uuid.UUID]int{id: 1},
			}
			test.change(&r)
			_, violations := world.Judge(r)
			want := make(map[world.Kind]int)
			for _, kind := range test.want {
				want[kind]++
			}
			for _, v := range violations {
				if want[v.Kind]--; want[v.Kind] < 0 {
					t.Errorf("the judge sees %v", v)
				}
			}
			for kind, n := range want {
				if n > 0 {
					t.Errorf("the judge does not see %q", kind)
				}
			}
		})
	}
}
