package model

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A search is one exhaustive run of SPIN over one configuration of the model.
type search struct {
	file    string   // the model
	defines []string // -D flags of the configuration
	faults  int      // the most faults in any run
	compile []string // flags of the C compiler, in addition to the usual ones
	run     []string // flags of the checker, in addition to the usual ones
}

// A result is the outcome of a search.
type result struct {
	errors int
	states int
	trail  []string // the run that breaks the promise, in plain text
}

// The memory of one search, in MiB. A search that needs more is an error, never incomplete.
const memory = "900"

// fewStates makes the checker begin with a small table of states, which is cleared sooner and grows
// if needed.
const fewStates = "-w19"

// requireSpin skips or fails the test if SPIN or a C compiler is not installed.
func requireSpin(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"spin", "gcc"} {
		switch _, err := exec.LookPath(tool); {
		case err == nil:
		case os.Getenv("CI") == "true":
			t.Fatalf("%v: install Debian's packages spin, gcc and libc6-dev", err)
		default:
			t.Skipf("%v: install Debian's packages spin, gcc and libc6-dev", err)
		}
	}
}

// name returns a name that is unique among the configurations.
func (s search) name() string {
	return strings.Join(slices.Concat([]string{strings.TrimSuffix(s.file, ".pml")}, s.defines), " ")
}

// do builds a checker of the model, runs it, and reads its report.
func (s search) do(t *testing.T) result {
	t.Helper()
	return s.check(t, s.build(t, nil))
}

// build builds a checker of the model, and returns the program. edit, if it is not nil, may change
// each file of the model first.
func (s search) build(t *testing.T, edit func(file, text string) string) (program string) {
	t.Helper()
	requireSpin(t)
	dir := t.TempDir()
	models, err := filepath.Glob("*.pml")
	if err != nil || len(models) == 0 {
		t.Fatalf("find the model: %v, %v", models, err)
	}
	for _, name := range models {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if edit != nil {
			text = []byte(edit(name, string(text)))
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	command(t, dir, nil, "spin", slices.Concat([]string{"-a", fmt.Sprintf("-DFAULTS=%d", s.faults)}, s.defines, []string{s.file})...)
	command(t, dir, nil, "gcc", slices.Concat([]string{"-w", "-DMEMLIM=" + memory},
		s.compile, []string{"-o", "pan", "pan.c"})...)
	return filepath.Join(dir, "pan")
}

// check runs a checker, with these variables in its environment, and reads its report.
func (s search) check(t *testing.T, program string, variables ...string) result {
	t.Helper()
	dir := t.TempDir() // for the trail
	// -E: the model itself judges end states (end.pml), in more detail.
	r := parse(t, command(t, dir, variables, program, append([]string{"-E", "-m100000"}, s.run...)...))
	if r.errors > 0 {
		r.trail = words(command(t, dir, variables, program, "-S"))
	}
	return r
}

// patience bounds each step. The longest takes seconds, or minutes with -model.long.
const patience = 5 * time.Minute

// command runs one step, and returns its output. SPIN's tools report errors in their output; a
// checker that finds an error exits with 0.
func command(t *testing.T, dir string, variables []string, name string, args ...string) string {
	t.Helper()
	limit := patience
	if *longFlag {
		limit *= 4
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, fmt.Errorf("it has not ended within %v", limit))
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), variables...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v, %v\n%s", name, strings.Join(args, " "), err, context.Cause(ctx), out)
	}
	return string(out)
}

var (
	found    = regexp.MustCompile(`(?m)^State-vector .* errors: (\d+)$`)
	stored   = regexp.MustCompile(`(?m)^ *([\d.e+]+) states, stored`)
	cutShort = regexp.MustCompile(`(?i)max search depth too small|search not completed|out of memory|truncat|resource limitation|memory limit|hash-?table.*full|aborting`)
)

// parse reads the checker's report, and fails the test if the search is incomplete.
func parse(t *testing.T, report string) result {
	t.Helper()
	e, n := found.FindStringSubmatch(report), stored.FindStringSubmatch(report)
	if e == nil || n == nil {
		t.Fatalf("the checker's report cannot be read:\n%s", report)
	}
	failures, err := strconv.Atoi(e[1])
	if err != nil {
		t.Fatal(err)
	}
	states, err := strconv.ParseFloat(n[1], 64) // large numbers are in powers of ten
	if err != nil {
		t.Fatal(err)
	}
	r := result{errors: failures, states: int(states)}
	if r.errors == 0 && cutShort.MatchString(report) {
		t.Fatalf("the search was cut short:\n%s", report)
	}
	return r
}

// names replaces the model's numbers by words.
var names = strings.NewReplacer(
	"queue 0", "the staging queue", "queue 1", "the waiting queue", "queue 2", "the target", "queue 3", "the dead queue",
	"content 1", "A", "content 2", "B", "content 3", "A and B", "group 1", "A", "group 2", "B", "group 3", "A and B")

// words returns the model's own lines of a replayed run, without SPIN's.
func words(replay string) []string {
	var said []string
	for line := range strings.Lines(replay) {
		line = names.Replace(strings.TrimSpace(line))
		said = append(said, line)
		if strings.HasPrefix(line, "BROKEN") {
			break
		}
	}
	return said
}
