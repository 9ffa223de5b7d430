// Package bridgectl_test runs bridgectl as an operator does: the real binary with an environment,
// signals and real servers.
package bridgectl_test

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/program"
)

func TestMain(m *testing.M) { program.Main(m) }

// must ends the test if a step fails that the test only depends on.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tool is bridgectl with an environment.
type tool struct {
	t   *testing.T
	env []string
}

// withEnv returns the tool with these variables, each NAME=value. The BRIDGE_ variables of the
// test process do not reach it.
func withEnv(t *testing.T, env ...string) *tool {
	t.Helper()
	return &tool{t: t, env: env}
}

// also returns the tool with further variables; a variable of the same name is replaced.
func (b *tool) also(env ...string) *tool {
	return &tool{t: b.t, env: append(slices.Clone(b.env), env...)}
}

// command returns a call that has not been started.
func (b *tool) command(args ...string) *exec.Cmd {
	b.t.Helper()
	cmd := program.Command(b.t, "bridgectl", args...)
	cmd.Env = append(cmd.Env, b.env...)
	return cmd
}

// start starts bridgectl.
func (b *tool) start(args ...string) *program.Process {
	b.t.Helper()
	return program.StartCmd(b.t, b.command(args...))
}

// run runs bridgectl and waits until it ends.
func (b *tool) run(args ...string) program.Result {
	b.t.Helper()
	return program.RunCmd(b.t, b.command(args...))
}

// must runs a call that has to succeed, and returns its standard output.
func (b *tool) must(args ...string) string {
	b.t.Helper()
	r := b.run(args...)
	if r.Code != 0 || r.Stderr != "" {
		b.t.Fatalf("bridgectl %s: exit code %d, stderr %q, stdout\n%s", strings.Join(args, " "), r.Code, r.Stderr, r.Stdout)
	}
	return r.Stdout
}

// json runs a call with -o json that has to succeed, and decodes its output into answer.
func (b *tool) json(answer any, args ...string) {
	b.t.Helper()
	text := b.must(append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(text), answer); err != nil {
		b.t.Fatalf("bridgectl %s: %v:\n%s", strings.Join(args, " "), err, text)
	}
}
