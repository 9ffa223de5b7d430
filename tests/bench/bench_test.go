package main

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/compose/servers"
)

// The test binary also plays the roles of the application's and the relay's processes.
func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// The test runs every scenario, every contender and every kind of place with a few messages each.
// If a contender loses messages or sends messages of rolled-back transactions, the comparison is
// worthless, so world.compare returns an error.
func TestEveryContenderDeliversExactlyTheCommittedMessages(t *testing.T) {
	w, err := newWorld(t.Context(), config{
		rounds: 1, window: 50 * time.Millisecond, warmUp: 10 * time.Millisecond, patience: time.Minute,
		backlog: 1000, inbox: 20_000, test: true, only: regexp.MustCompile(""),
	})
	if errors.Is(err, servers.ErrMissing) && os.Getenv("CI") != "true" {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	seen, compared := make(map[any]bool), make(map[string]bool)
	for _, s := range scenarios {
		for _, one := range s.trials(w.config) {
			compared[one.name] = true
		}
		t.Run(s.name, func(t *testing.T) {
			trials := newTrials(seen, s.trials(w.config))
			if err := w.compare(t.Context(), s.name, trials); err != nil {
				t.Fatal(err)
			}
			for _, one := range trials {
				if !slices.ContainsFunc(w.report.samples, func(v sample) bool { return v.scenario == s.name && v.contender == one.name }) {
					t.Errorf("%s is not in the report", one.name)
				}
			}
		})
	}
	for _, c := range contenders {
		if !compared[c.name] {
			t.Errorf("%s is in no scenario", c.name)
		}
	}
}

// newTrials returns the trials with a new contender or a new shape of place, or the first trial if
// none is new. Of each trial's quick points it keeps the first and the last.
func newTrials(seen map[any]bool, trials []trial) (some []trial) {
	type shape struct{ mariaDB, classic, five, ordered, inbox, queues, orphans, pgx, many bool }
	for i, one := range trials {
		trials[i].points = slices.DeleteFunc(slices.Clone(one.points), func(p point) bool {
			return p.open > 50 || p.order.Messages*p.order.Size > 1<<20
		})
		if n := len(trials[i].points); n > 2 {
			trials[i].points = []point{one.points[0], trials[i].points[n-1]}
		}
		k := one.kind
		in := shape{k.MariaDB, k.Classic, k.Five, k.Shards > 0, k.Inbox > 0, k.Queues > 0, k.Orphans > 0,
			one.contender != nil && one.contender.pgx,
			slices.ContainsFunc(one.points, func(p point) bool { return p.order.Messages > 1 })}
		if !seen[one.name] || !seen[in] {
			seen[one.name], seen[in] = true, true
			some = append(some, trials[i])
		}
	}
	if len(some) == 0 {
		some = trials[:1]
	}
	return some
}
