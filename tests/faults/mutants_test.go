package faults

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/tests/faults/parts"
	"github.com/twoqueue/twoqueue/tests/faults/world"
)

// A mutant breaks one rule. All of them are in one build of the product, which breaks
// the one that it is told to (world.Config.Mutant).
type mutant struct {
	name     string
	edits    []edit
	scenario string     // in which the rule matters
	caught   world.Kind // as what the judge sees it
}

// An edit replaces a text that stands exactly once in a file of the product, or in what
// the edits before it have made of that. A refactoring that moves the text fails the
// test; then find the rule's new place.
type edit struct{ file, old, new string }

// theSwitch is a further file of each package that is edited.
const theSwitch = `

import "os"

var chosen = os.Getenv("` + parts.MutantVariable + `")

func mutant(name string) bool { return name == chosen }
`

var mutants = []mutant{
	{
		name:     "ack before confirm",
		scenario: "a verifier dies while a target is missing",
		caught:   world.Lost,
		edits: []edit{{"verifier/pipeline.go", `		m.forward(s.opts.KeepUserID)
`, `		m.forward(s.opts.KeepUserID)
		if mutant("ack before confirm") {
			_ = m.parcel.lane.ch.Ack(m.parcel.tag, false)
		}
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
		if mutant("delete before confirm") {
			_ = s.ledger.Forget(context.Background(), alone(m.staged.ID))
		}
`},
		},
	},
	{
		name:     "drop on time-out",
		scenario: "a transaction is open for longer than the lock time-out",
		caught:   world.Lost,
		edits: []edit{
			{"verifier/lookup.go", `leaves := outcome != bridge.StillOpen || s.overstays(m, time.Now())`,
				`leaves := outcome != bridge.StillOpen || s.overstays(m, time.Now()) || mutant("drop on time-out")`},
			{"verifier/lookup.go", `case outcome == bridge.RolledBack:`,
				`case outcome == bridge.RolledBack || mutant("drop on time-out") && outcome != bridge.Committed:`},
		},
	},
	{
		name:     "forward on time-out",
		scenario: "a transaction is open for longer than the lock time-out, and rolls back",
		caught:   world.Invented,
		edits: []edit{
			{"verifier/lookup.go", `leaves := outcome != bridge.StillOpen || s.overstays(m, time.Now())`,
				`leaves := outcome != bridge.StillOpen || s.overstays(m, time.Now()) || mutant("forward on time-out")`},
			{"verifier/lookup.go", `case outcome == bridge.Committed:`,
				`case outcome == bridge.Committed || mutant("forward on time-out") && outcome != bridge.RolledBack:`},
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
	// Rule 2`, `	if mutant("publish before record") {
		// later
	} else if err := s.ledger.Record(ctx, tx, ids); err != nil {
		return nil, fmt.Errorf("send: %w", err)
	}
	// Rule 2`},
			{"sender/sender.go", `	return ids, nil
}

// encode`, `	if mutant("publish before record") {
		if err := s.ledger.Record(ctx, tx, ids); err != nil {
			return nil, fmt.Errorf("send: %w", err)
		}
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
		edits: []edit{{"sender/sender.go", `	switch {
	case errors.Is(err, bridge.ErrReturned):`, `	switch {
	case err != nil && mutant("commit without a confirm"):
		return ids, nil
	case errors.Is(err, bridge.ErrReturned):`}},
	},
	{
		name:     "ignore returns of forwarded messages",
		scenario: "a verifier dies while a target is missing",
		caught:   world.Lost,
		edits: []edit{{"bridge/confirmchannel.go", `	case p.wasReturned(pub.key):`,
			`	case p.wasReturned(pub.key) && !mutant("ignore returns of forwarded messages"):`}},
	},
	{
		name:     "ignore returns of staged messages",
		scenario: "the staging queue is missing",
		caught:   world.Lost,
		edits: []edit{{"bridge/confirmchannel.go", `	case p.wasReturned(pub.key) && `,
			`	case p.wasReturned(pub.key) && !mutant("ignore returns of staged messages") && `}},
	},
	{
		name:     "believe a non-waiting miss",
		scenario: "a transaction is open for longer than the lock time-out",
		caught:   world.Lost,
		edits: []edit{{"verifier/lookup.go", `	s.room.enter(misses...)
`, `	if mutant("believe a non-waiting miss") {
		for _, m := range misses {
			s.drop(m)
		}
		misses = nil
	}
	s.room.enter(misses...)
`}},
	},
	{
		name:     "stale ack after a reconnect",
		scenario: "a verifier reconnects while a target is missing, and dies",
		caught:   world.Lost,
		edits: []edit{
			{"verifier/lane.go", `	return &lane{queue: queue, prefetch: prefetch, ch: ch, acks: newAcks(ch), freed: make(chan struct{}, 1)}
}
`, `	a := newAcks(ch)
	if mutant("stale ack after a reconnect") {
		if outliving[queue] == nil {
			outliving[queue] = a
		}
		a = outliving[queue]
		a.ch = ch // the tags stay
	}
	return &lane{queue: queue, prefetch: prefetch, ch: ch, acks: a, freed: make(chan struct{}, 1)}
}

var outliving = map[string]*acks{}
`},
			{"verifier/acks.go", `	for _, tag := range tags {
		for tag >= a.first`, `	for _, tag := range tags {
		if mutant("stale ack after a reconnect") && tag < a.first {
			continue
		}
		for tag >= a.first`},
		},
	},
	{
		name:     "ack a group with its first message",
		scenario: "a verifier dies while the target of one of two messages that travel together is missing",
		caught:   world.Lost,
		edits: []edit{{"verifier/pipeline.go", `if m.parcel.open.Add(-1) == 0 {`,
			`if m.parcel.open.Add(-1) == 0 || mutant("ack a group with its first message") {`}},
	},
	{
		name:     "no claim in the inbox",
		scenario: "a message comes twice",
		caught:   world.TwoEffects,
		edits: []edit{{"idempotency/attempt.go", `	if !fresh {
`, `	if !fresh && !mutant("no claim in the inbox") {
`}},
	},
}

// overlay makes the product's files with all mutants in them, and the file that has the
// compiler take them.
func overlay(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	texts := make(map[string]string) // by file
	for _, m := range mutants {
		for i, e := range m.edits {
			if texts[e.file] == "" {
				text, err := os.ReadFile(filepath.Join(root, e.file))
				if err != nil {
					t.Fatal(err)
				}
				texts[e.file] = string(text)
			}
			if n := strings.Count(texts[e.file], e.old); n != 1 {
				t.Fatalf("%s holds the text of the mutant's edit %d %d times, must be once: find the place of the rule %q and adapt the edit:\n%s",
					e.file, i+1, n, m.name, e.old)
			}
			texts[e.file] = strings.Replace(texts[e.file], e.old, e.new, 1)
			pkg := filepath.Dir(e.file)
			texts[pkg+"/mutant.go"] = "package " + pkg + theSwitch
		}
	}
	folder := t.TempDir()
	replace := make(map[string]string)
	for file, text := range texts {
		patched := filepath.Join(folder, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(patched, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(root, file)] = patched
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
		t.Skip("plays twelve scenarios with processes")
	}
	program := world.Build(t, overlay(t))
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			_, violations := play(t, program, m.name, m.scenario)
			t.Log(world.Summary(violations))
			if !slices.ContainsFunc(violations, func(v world.Violation) bool { return v.Kind == m.caught }) {
				t.Fatalf("the mutant was not caught: no message is %q", m.caught)
			}
			t.Logf("%-40s caught as %q after %v: %s", m.name, m.caught, time.Since(began).Round(100*time.Millisecond), m.scenario)
		})
	}
}
