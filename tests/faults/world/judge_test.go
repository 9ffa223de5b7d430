package world_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/tests/faults/parts"
	"github.com/twoqueue/twoqueue/tests/faults/world"
)

// Each case is a world with one correctly delivered order, with some changes.
func TestTheJudgeFindsExactlyTheViolations(t *testing.T) {
	type (
		change  = func(*world.Records)
		changes = []change
		kinds   = []world.Kind
	)
	id, other := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	target := parts.TargetName(world.Classic)
	placed := time.Now()
	before, later := placed.Add(-time.Second), placed.Add(time.Second)

	// Changes of the order's message.
	gone := func(r *world.Records) { r.Arrivals, r.Effects = nil, nil }
	row := func(id uuid.UUID) change { return func(r *world.Records) { r.Rows = append(r.Rows, id) } }
	judged := func(at time.Time) change {
		return func(r *world.Records) { r.Committed = map[uuid.UUID]time.Time{id: at} }
	}
	confirmed := func(at time.Time) change {
		return func(r *world.Records) { r.Forgotten = map[uuid.UUID]time.Time{id: at} }
	}
	dead := func(id uuid.UUID, reason, verdict string) change {
		return func(r *world.Records) { r.Dead = []world.DeadLetter{{ID: id, Reason: reason, Verdict: verdict}} }
	}
	numbered := func(id uuid.UUID, number int) change {
		return func(r *world.Records) {
			r.Orders[id] = world.Placed{Target: target, At: placed, Key: "k", Number: number}
		}
	}
	otherComes := func(r *world.Records) {
		r.Arrivals = append(r.Arrivals, world.Arrival{ID: other, Target: target, Intact: true})
	}
	otherFirst := func(r *world.Records) {
		otherComes(r)
		r.Arrivals[0], r.Arrivals[1] = r.Arrivals[1], r.Arrivals[0]
	}
	otherHasEffect := func(r *world.Records) { r.Effects[other] = 1 }
	forNowhere := func(r *world.Records) {
		r.Orders[other] = world.Placed{Target: parts.TargetName(world.Nowhere), At: placed}
	}
	// Acts of the harness.
	stagingDeleted := func(at time.Time) change {
		return func(r *world.Records) { r.Events.StagingDeleted = []world.Deletion{{At: at, Ready: 1}} }
	}
	targetDeleted := func(target string, d world.Deletion) change {
		return func(r *world.Records) { r.Events.TargetDeleted = map[string][]world.Deletion{target: {d}} }
	}
	notBefore := func(after time.Duration) change { // relative to its arrival
		return func(r *world.Records) {
			r.Arrivals[0].At = later
			o := r.Orders[id]
			o.NotBefore = r.Arrivals[0].At.Add(after).UnixMilli()
			r.Orders[id] = o
		}
	}
	carried := func(r *world.Records) { r.Carried = map[uuid.UUID]bool{id: true} }
	claimed := func(r *world.Records) { r.Claims = map[uuid.UUID]int{id: 1} }
	databaseKilled := func(at time.Time) change {
		return func(r *world.Records) { r.Events.DatabaseKilled = []time.Time{at} }
	}
	stray := func(r *world.Records) {
		r.Events.Strays = map[string]world.Stray{"stray": {Reason: "foreign", At: placed}}
	}
	many := func(each func(r *world.Records, id uuid.UUID)) change {
		return func(r *world.Records) {
			r.Committed, r.Forgotten = make(map[uuid.UUID]time.Time), make(map[uuid.UUID]time.Time)
			r.Held, r.Judging = 80, 1
			for range 1000 {
				id := uuid.Must(uuid.NewV7())
				r.Orders[id] = world.Placed{Target: target, At: placed}
				each(r, id)
			}
		}
	}

	for name, test := range map[string]struct {
		changes changes
		want    kinds
	}{
		"as it should be":           {nil, nil},
		"it comes twice":            {changes{func(r *world.Records) { r.Arrivals = append(r.Arrivals, r.Arrivals[0]) }}, nil},
		"it is the next of its key": {changes{numbered(other, 1), numbered(id, 2), otherFirst, otherComes, otherHasEffect}, nil},
		"it arrives before an earlier one of its key": {changes{numbered(other, 1), numbered(id, 2), otherComes, otherHasEffect},
			kinds{world.Disordered, world.Disordered}},
		"it has a key, does not come, and the staging queue was deleted": {changes{numbered(id, 1), gone, row(id), stagingDeleted(later)},
			kinds{world.Lost, world.Orphan}},
		"it does not come":                                   {changes{gone}, kinds{world.Lost}},
		"it does not come, and its row is left":              {changes{gone, row(id)}, kinds{world.Lost, world.Orphan}},
		"it was in the staging queue that was deleted":       {changes{gone, row(id), stagingDeleted(later)}, nil},
		"the staging queue was deleted before it":            {changes{gone, row(id), stagingDeleted(before)}, kinds{world.Lost, world.Orphan}},
		"the staging queue was deleted, but its row is gone": {changes{gone, stagingDeleted(later)}, kinds{world.Lost}},
		"it was in the target queue that was deleted":        {changes{gone, judged(placed), confirmed(placed), targetDeleted(target, world.Deletion{At: later})}, nil},
		"it was placed before its target queue was deleted, which never confirmed it": {
			changes{gone, judged(placed), targetDeleted(target, world.Deletion{At: later})}, kinds{world.Lost}},
		"it was placed before its target queue was deleted, and forwarded after it": {
			changes{gone, judged(placed.Add(time.Minute)), confirmed(placed.Add(time.Minute)), targetDeleted(target, world.Deletion{At: later})},
			kinds{world.Lost}},
		"it was confirmed by its target, its row is left, and the staging queue was deleted": {
			changes{gone, row(id), confirmed(placed), stagingDeleted(later)}, kinds{world.Lost}},
		"more were lost with a target queue than it can have held": {changes{
			many(func(r *world.Records, id uuid.UUID) { r.Committed[id], r.Forgotten[id] = placed, placed }),
			targetDeleted(target, world.Deletion{At: later, Ready: 10}),
		}, kinds{world.TooMany}},
		"more were lost with the staging queue than it can have held": {changes{
			many(func(r *world.Records, id uuid.UUID) { r.Rows = append(r.Rows, id) }), stagingDeleted(later),
		}, kinds{world.TooMany}},
		"another target queue was deleted": {
			changes{gone, judged(placed), confirmed(placed), targetDeleted(parts.TargetName(world.Quorum), world.Deletion{At: later})},
			kinds{world.Lost}},
		"an uncommitted message comes":      {changes{otherComes}, kinds{world.Invented}},
		"one has an effect that never came": {changes{otherHasEffect}, kinds{world.Invented}},
		"it is carried, and was in the staging queue that was deleted": {changes{carried, gone, row(id), stagingDeleted(later)},
			kinds{world.Lost, world.Orphan}},
		"it is carried, and its row is left": {changes{carried, row(id), confirmed(placed), databaseKilled(later)}, kinds{world.Orphan}},
		"it is carried, and has a key":       {changes{carried, numbered(id, 1)}, kinds{world.KeyCarried}},
		"it is staged again":                 {changes{carried, claimed}, nil},
		"it has no effect":                   {changes{func(r *world.Records) { r.Effects = nil }}, kinds{world.NoEffect}},
		"it has two effects":                 {changes{func(r *world.Records) { r.Effects[id] = 2 }}, kinds{world.TwoEffects}},
		"it arrives before its time":         {changes{notBefore(time.Millisecond)}, kinds{world.Early}},
		"it arrives at its time":             {changes{notBefore(0)}, nil},
		"its content has changed":            {changes{func(r *world.Records) { r.Arrivals[0].Intact = false }}, kinds{world.Changed}},
		"it comes to another target": {changes{func(r *world.Records) { r.Arrivals[0].Target = parts.TargetName(world.Quorum) }},
			kinds{world.Changed}},
		"a message is left staged":    {changes{func(r *world.Records) { r.Staged = 1 }}, kinds{world.Leftover}},
		"a message waits to be taken": {changes{func(r *world.Records) { r.Waiting = 1 }}, kinds{world.Leftover}},
		"its row is left":             {changes{row(id)}, kinds{world.Orphan}},
		"its row is left, and a verifier was killed": {changes{row(id), func(r *world.Records) {
			r.Events.VerifierKilled = []time.Time{later}
		}}, nil},
		"its row is left, and a verifier was killed before": {changes{row(id), func(r *world.Records) {
			r.Events.VerifierKilled = []time.Time{before}
		}}, kinds{world.Orphan}},
		"a crash has brought its row back":        {changes{row(id), confirmed(placed), databaseKilled(later)}, nil},
		"its row came back long before the crash": {changes{row(id), confirmed(placed), databaseKilled(placed.Add(time.Hour))}, kinds{world.Orphan}},
		"a proof was killed":                      {changes{row(other), func(r *world.Records) { r.Canaries = map[uuid.UUID]bool{other: true} }}, nil},
		"a row is of no message":                  {changes{row(other)}, kinds{world.Orphan}},
		"it is dead":                              {changes{dead(id, "unroutable", "committed")}, kinds{world.WronglyDead}},
		"it is dead, as its target's queue was away for long": {changes{gone, dead(id, "unroutable", "committed"),
			targetDeleted(target, world.Deletion{At: before, Back: placed.Add(2 * parts.Unroutable)})}, nil},
		"it is dead, though its target's queue was away for a moment": {changes{gone, dead(id, "unroutable", "committed"),
			targetDeleted(target, world.Deletion{At: before, Back: later})}, kinds{world.WronglyDead}},
		"it is dead, though its target's queue was back before it": {changes{gone, dead(id, "unroutable", "committed"),
			targetDeleted(target, world.Deletion{At: before.Add(-2 * parts.Unroutable), Back: before})}, kinds{world.WronglyDead}},
		"an uncommitted one is dead":                   {changes{dead(other, "unroutable", "committed")}, kinds{world.WronglyDead}},
		"one for nowhere is dead":                      {changes{forNowhere, dead(other, "unroutable", "committed")}, nil},
		"one for nowhere is dead for the wrong reason": {changes{forNowhere, dead(other, "malformed", "unknown")}, kinds{world.WronglyDead}},
		"one for nowhere is gone":                      {changes{forNowhere}, kinds{world.Lost}},
		"a stray is dead":                              {changes{stray, func(r *world.Records) { r.Dead = []world.DeadLetter{{Stray: "stray", Reason: "foreign"}} }}, nil},
		"a stray is gone":                              {changes{stray}, kinds{world.Lost}},
	} {
		t.Run(name, func(t *testing.T) {
			r := world.Records{
				Orders:   map[uuid.UUID]world.Placed{id: {Target: target, At: placed}},
				Arrivals: []world.Arrival{{ID: id, Target: target, Intact: true}},
				Effects:  map[uuid.UUID]int{id: 1},
			}
			for _, change := range test.changes {
				change(&r)
			}
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
