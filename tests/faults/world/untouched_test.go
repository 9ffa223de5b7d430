package world_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/tests/faults/parts"
	"github.com/twoqueue/twoqueue/tests/faults/world"
)

// Each case is a world with one order, which was committed and arrived some time later, and one
// fault that lasted ten seconds. begins is when the fault began, after the commit.
func TestJudgeMeasuresUntouchedMessages(t *testing.T) {
	id := uuid.Must(uuid.NewV7())
	classic, exchange := world.Fault{Kind: world.DeleteTarget}, world.Fault{Kind: world.FullBeside}
	killed := world.Fault{Kind: world.KillBroker}
	const sender, verifier, lasts = "sender-1", "verifier-1", 10 * time.Second
	const early, late = 100 * time.Millisecond, 3 * time.Second
	for name, test := range map[string]struct {
		trouble        world.Trouble
		begins         time.Duration // after the commit
		took           time.Duration
		change         func(*world.Records)
		counts, inTime int
	}{
		"the broker was killed at its commit":      {world.Trouble{Fault: killed}, 0, early, nil, 0, 0},
		"the broker was killed a second later":     {world.Trouble{Fault: killed}, time.Second, early, nil, 0, 0},
		"the broker was killed two seconds later":  {world.Trouble{Fault: killed}, 2 * time.Second, early, nil, 1, 1},
		"the broker was back for four seconds":     {world.Trouble{Fault: killed}, -lasts - 4*time.Second, early, nil, 0, 0},
		"the broker was back for five seconds":     {world.Trouble{Fault: killed}, -lasts - 5*time.Second, early, nil, 1, 1},
		"its target was missing":                   {world.Trouble{Fault: classic}, 0, early, nil, 0, 0},
		"another target was missing":               {world.Trouble{Fault: world.Fault{Kind: world.DeleteTarget, Target: 1}}, 0, early, nil, 1, 1},
		"a queue beside another target's was full": {world.Trouble{Fault: exchange}, 0, early, nil, 1, 1},
		"it took too long":                         {world.Trouble{Fault: exchange}, 0, late, nil, 1, 0},
		"its target confirmed it, its receiver was slow": {world.Trouble{Fault: exchange}, 0, early, func(r *world.Records) {
			r.AtTarget = map[uuid.UUID]time.Time{id: r.Commits[id].At.Add(early)}
			r.Arrivals[0].At = r.Arrivals[0].At.Add(late)
		}, 1, 1},
		"it arrived before its sender knew": {world.Trouble{Fault: exchange}, 0, -early, nil, 1, 1},
		"it did not arrive":                 {world.Trouble{Fault: exchange}, 0, early, func(r *world.Records) { r.Arrivals = nil }, 1, 0},
		"its row was locked":                {world.Trouble{Fault: world.Fault{Kind: world.LockRows}, Rows: map[uuid.UUID]bool{id: true}}, 0, early, nil, 0, 0},
		"another row was locked":            {world.Trouble{Fault: world.Fault{Kind: world.LockRows}}, 0, early, nil, 1, 1},
		"its sender's link was cut":         {world.Trouble{Fault: world.Fault{Kind: world.CutLink}, Sender: sender}, 0, early, nil, 0, 0},
		"another sender's link was cut":     {world.Trouble{Fault: world.Fault{Kind: world.CutLink}, Sender: "sender-2"}, 0, early, nil, 1, 1},
		"a receiver's link was cut":         {world.Trouble{Fault: world.Fault{Kind: world.CutLink}}, 0, early, nil, 0, 0},
		"its verifier was killed":           {world.Trouble{Fault: world.Fault{Kind: world.KillProcess}, Verifier: verifier}, 0, early, nil, 0, 0},
		"another verifier was killed":       {world.Trouble{Fault: world.Fault{Kind: world.KillProcess}, Verifier: "verifier-2"}, 0, early, nil, 1, 1},
		"a verifier was killed that held it": {world.Trouble{Fault: world.Fault{Kind: world.KillProcess}, Verifier: "verifier-2"}, 0, early, func(r *world.Records) {
			r.Seen[id] = world.Seen{By: []string{verifier}, Again: true}
		}, 0, 0},
		"its target did not answer": {world.Trouble{Fault: world.Fault{Kind: world.SilentTarget}}, 0, early, func(r *world.Records) {
			r.Orders[id] = world.Placed{Target: parts.TargetName(world.Quorum), At: r.Orders[id].At}
		}, 0, 0},
		"another target did not answer":  {world.Trouble{Fault: world.Fault{Kind: world.SilentTarget}}, 0, early, nil, 1, 1},
		"other transactions were slow":   {world.Trouble{Fault: world.Fault{Kind: world.SlowTransactions}}, 0, early, nil, 1, 1},
		"there were unreadable messages": {world.Trouble{Fault: world.Fault{Kind: world.UnreadableMessages}}, 0, early, nil, 1, 1},
		"connections were limited":       {world.Trouble{Fault: world.Fault{Kind: world.FewConnections}}, 0, early, nil, 1, 1},
		"there were strays":              {world.Trouble{Fault: world.Fault{Kind: world.StrayMessages}}, 0, early, nil, 1, 1},
		"it came twice": {world.Trouble{Fault: exchange}, 0, early, func(r *world.Records) {
			again := r.Arrivals[0]
			again.At = again.At.Add(late)
			r.Arrivals = append(r.Arrivals, again)
		}, 1, 1},
		"its sender has not heard of the commit": {world.Trouble{Fault: exchange}, 0, early, func(r *world.Records) { r.Commits = nil }, 0, 0},
		"its transaction was open for long": {world.Trouble{Fault: exchange}, 0, early, func(r *world.Records) {
			o := r.Orders[id]
			o.At = o.At.Add(-time.Second)
			r.Orders[id] = o
		}, 0, 0},
		"the run was over within two seconds": {world.Trouble{Fault: exchange}, 0, early, func(r *world.Records) {
			r.Events.Finished = r.Commits[id].At.Add(time.Second)
		}, 0, 0},
		"the plan began later": {world.Trouble{Fault: exchange}, 0, early, func(r *world.Records) {
			r.Events.Began = r.Commits[id].At.Add(time.Second)
		}, 0, 0},
		"no plan was carried out": {world.Trouble{}, 0, early, func(r *world.Records) { r.Events.Troubles = nil }, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			commit := time.Now()
			target := parts.TargetName(world.Classic)
			trouble := test.trouble
			trouble.From = commit.Add(test.begins)
			trouble.To = trouble.From.Add(lasts)
			r := world.Records{
				Orders:   map[uuid.UUID]world.Placed{id: {Target: target, At: commit.Add(-10 * time.Millisecond)}},
				Arrivals: []world.Arrival{{ID: id, Target: target, Intact: true, At: commit.Add(test.took)}},
				Effects:  map[uuid.UUID]int{id: 1},
				Commits:  map[uuid.UUID]world.Commit{id: {At: commit, Sender: sender}},
				Seen:     map[uuid.UUID]world.Seen{id: {By: []string{verifier}}},
				Events:   world.Events{Troubles: []world.Trouble{trouble}, Finished: commit.Add(time.Hour)},
			}
			if test.change != nil {
				test.change(&r)
			}
			totals, _ := world.Judge(r)
			got := totals.Untouched
			if got.Messages != test.counts || got.InTime != test.inTime {
				t.Errorf("%d untouched, %d in time; want %d and %d", got.Messages, got.InTime, test.counts, test.inTime)
			}
			if want := max(0, test.took); got.Messages == 1 && len(r.Arrivals) > 0 && got.Slowest != want {
				t.Errorf("slowest %v, want %v", got.Slowest, want)
			}
		})
	}
}

// A session ended during or after a fault that lasted ten seconds.
func TestJudgeSeesSessionsThatLocalFaultsEnd(t *testing.T) {
	const verifier, other = "verifier-1", "verifier-2"
	kill := world.Fault{Kind: world.KillProcess}
	for name, test := range map[string]struct {
		trouble  world.Trouble
		after    time.Duration // from the fault's beginning to the session's end
		violates bool
	}{
		"its verifier was killed":       {world.Trouble{Fault: kill, Verifier: verifier}, time.Second, false},
		"another verifier was killed":   {world.Trouble{Fault: kill, Verifier: other}, time.Second, true},
		"long after a kill":             {world.Trouble{Fault: kill, Verifier: verifier}, time.Minute, true},
		"a target was missing":          {world.Trouble{Fault: world.Fault{Kind: world.DeleteTarget}}, time.Second, true},
		"the database was killed":       {world.Trouble{Fault: world.Fault{Kind: world.KillDatabase}}, time.Second, false},
		"everything was at its end":     {world.Trouble{Fault: kill, Verifier: other}, 2 * time.Hour, false},
		"there were unreadable headers": {world.Trouble{Fault: world.Fault{Kind: world.UnreadableMessages}}, time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			from := time.Now()
			trouble := test.trouble
			trouble.From, trouble.To = from, from.Add(10*time.Second)
			_, violations := world.Judge(world.Records{
				SessionsEnded: []world.SessionEnd{{Verifier: verifier, At: from.Add(test.after), Line: "session ended"}},
				Events:        world.Events{Troubles: []world.Trouble{trouble}, Finished: from.Add(time.Hour)},
			})
			if got := len(violations) > 0 && violations[0].Kind == world.EndedBeside; got != test.violates {
				t.Errorf("violations %v, want one: %t", violations, test.violates)
			}
		})
	}
}
