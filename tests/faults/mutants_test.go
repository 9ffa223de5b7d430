package faults

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/tests/faults/world"
)

// A mutant is a build of the product that breaks one rule.
type mutant struct {
	name     string
	edits    []edit
	scenario string     // in which the rule matters
	caught   world.Kind // as what the judge sees it
}

// An edit replaces a text that stands exactly once in a file of the product. A
// refactoring that moves the text fails the test; then find the rule's new place.
type edit struct{ file, old, new string }

var mutants = []mutant{
	{
		name:     "ack before confirm",
		scenario: "a verifier dies while a target is missing",
		caught:   world.Lost,
		edits: []edit{{"verifier/pipeline.go", `		m.forward(s.opts.KeepUserID)
`, `		m.forward(s.opts.KeepUserID)
		_ = m.parcel.lane.ch.Ack(m.parcel.tag, false)
`}},
	},
	{
		name:     "delete before confirm",
		scenario: "a verifier dies while a target is missing",
		caught:   world.Lost,
		edits: []edit{
			{"verifier/pipeline.go", `// committed sends messages on`, `func alone[T any](x T) []T { return []T{x} }

// committed sends messages on`},
			{"verifier/pipeline.go", `		m.forward(s.opts.KeepUserID)
`, `		m.forward(s.opts.KeepUserID)
		_ = s.ledger.Forget(context.Background(), alone(m.staged.ID))
`},
		},
	},
	{
		name:     "drop on time-out",
		scenario: "a transaction is open for longer than the lock time-out",
		caught:   world.Lost,
		edits: []edit{
			{"verifier/lookup.go", `leaves := outcome != bridge.StillOpen || s.overstays(m, time.Now())`, `leaves := true`},
			{"verifier/lookup.go", `case outcome == bridge.RolledBack:`, `case outcome != bridge.Committed:`},
		},
	},
	{
		name:     "forward on time-out",
		scenario: "a transaction is open for longer than the lock time-out, and rolls back",
		caught:   world.Invented,
		edits: []edit{
			{"verifier/lookup.go", `leaves := outcome != bridge.StillOpen || s.overstays(m, time.Now())`, `leaves := true`},
			{"verifier/lookup.go", `case outcome == bridge.Committed:`, `case outcome != bridge.RolledBack:`},
		},
	},
	{
		name:     "publish before record",
		scenario: "the sender's way to the database is slow",
		caught:   world.Lost,
		edits: []edit{
			{"sender/sender.go", `	if err := s.ledger.Record(ctx, tx, ids); err != nil {
		return nil, fmt.Errorf("send: %w", err)
	}
`, ``},
			{"sender/sender.go", `	return ids, nil
}

// encode`, `	if err := s.ledger.Record(ctx, tx, ids); err != nil {
		return nil, fmt.Errorf("send: %w", err)
	}
	return ids, nil
}

// encode`},
		},
	},
	{
		name:     "commit without a confirm",
		scenario: "the staging queue is missing",
		caught:   world.Lost,
		edits: []edit{{"sender/sender.go", `		return nil, fmt.Errorf("send: the transaction must roll back: %w", err)
`, `		return ids, nil
`}},
	},
	{
		name:     "ignore returns of forwarded messages",
		scenario: "a verifier dies while a target is missing",
		caught:   world.Lost,
		edits:    []edit{{"bridge/confirmchannel.go", `	case returned[pub.key] > 0:`, `	case false:`}},
	},
	{
		name:     "ignore returns of staged messages",
		scenario: "the staging queue is missing",
		caught:   world.Lost,
		edits:    []edit{{"bridge/confirmchannel.go", `	case returned[pub.key] > 0:`, `	case false:`}},
	},
	{
		name:     "believe a non-waiting miss",
		scenario: "a transaction is open for longer than the lock time-out",
		caught:   world.Lost,
		edits: []edit{{"verifier/lookup.go", `	s.room.enter(misses...)
`, `	for _, m := range misses {
		s.drop(m)
	}
`}},
	},
	{
		name:     "stale ack after a reconnect",
		scenario: "a verifier reconnects while a target is missing, and dies",
		caught:   world.Lost,
		edits: []edit{
			{"verifier/lane.go", `	return &lane{queue: queue, prefetch: prefetch, ch: ch, acks: newAcks(ch), freed: make(chan struct{}, 1)}
}
`, `	a := outliving[queue]
	if a == nil {
		a = newAcks(ch)
		outliving[queue] = a
	}
	a.ch = ch // the tags stay
	return &lane{queue: queue, prefetch: prefetch, ch: ch, acks: a, freed: make(chan struct{}, 1)}
}

var outliving = map[string]*acks{}
`},
			{"verifier/acks.go", `		for tag >= a.first+uint64(len(a.state)) {
			a.state = append(a.state, unacked)
		}
		a.state[tag-a.first] = safe
`, `		if tag < a.first {
			continue
		}
		for tag >= a.first+uint64(len(a.state)) {
			a.state = append(a.state, unacked)
		}
		a.state[tag-a.first] = safe
`},
		},
	},
	{
		name:     "ack a group with its first message",
		scenario: "a verifier dies while the target of one of two messages that travel together is missing",
		caught:   world.Lost,
		edits:    []edit{{"verifier/pipeline.go", `if m.parcel.open.Add(-1) == 0 {`, `if m.parcel.open.Add(-1) >= 0 {`}},
	},
	{
		name:     "no claim in the inbox",
		scenario: "a message comes twice",
		caught:   world.TwoEffects,
		edits: []edit{{"idempotency/attempt.go", `	if !fresh {
`, `	if !fresh && false {
`}},
	},
}

// overlay makes the mutant's files, and the file that has the compiler take them.
func (m mutant) overlay(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	replace := make(map[string]string)
	for i, e := range m.edits {
		original := filepath.Join(root, e.file)
		source := original
		if patched, ok := replace[original]; ok {
			source = patched
		}
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), e.old); n != 1 {
			t.Fatalf("%s holds the text of the mutant's edit %d %d times, must be once: find the place of the rule %q and adapt the edit:\n%s",
				e.file, i+1, n, m.name, e.old)
		}
		patched := filepath.Join(folder, strings.ReplaceAll(e.file, "/", "_"))
		if err := os.WriteFile(patched, []byte(strings.Replace(string(text), e.old, e.new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[original] = patched
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "overlay.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestMutantsAreCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the product twelve times")
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			program := world.Build(t, m.overlay(t))
			began := time.Now()
			_, violations := play(t, program, m.scenario)
			t.Log(world.Summary(violations))
			if !slices.ContainsFunc(violations, func(v world.Violation) bool { return v.Kind == m.caught }) {
				t.Errorf("the mutant was not caught: no message is %q", m.caught)
			}
			t.Logf("%-40s caught as %q after %v: %s", m.name, m.caught, time.Since(began).Round(100*time.Millisecond), m.scenario)
		})
	}
}
