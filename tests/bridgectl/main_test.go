// Package bridgectl_test runs the operator's tool as operators do: the real binary,
// with an environment, signals and real servers.
package bridgectl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// patience bounds what must happen at all.
const patience = servertest.Patience

// binaries is the folder with the commands.
var binaries string

func TestMain(m *testing.M) { os.Exit(withBinaries(func() int { return servertest.Run(m) })) }

func withBinaries(run func() int) int {
	dir, err := os.MkdirTemp("", "twoqueue-bridgectl-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries = dir
	build := exec.Command("go", "build", "-o", binaries, "../../cmd/bridgectl", "../../cmd/verifier")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as the binaries of a release
	if output, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the commands: %v\n%s", err, output)
		return 1
	}
	return run()
}

// A tool is bridgectl with an environment.
type tool struct {
	t   *testing.T
	env []string
}

// withEnv is the tool with these variables, each NAME=value. None of our own
// BRIDGE_ variables reach it.
func withEnv(t *testing.T, env ...string) *tool {
	t.Helper()
	return &tool{t: t, env: env}
}

// also is the tool with more variables; one that is there already is replaced.
func (b *tool) also(env ...string) *tool {
	return &tool{t: b.t, env: append(append([]string{}, b.env...), env...)}
}

// command is one call that has not been started. It is killed when ctx ends.
func (b *tool) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(binaries, program), args...)
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "BRIDGE_") && !strings.HasPrefix(entry, "NO_COLOR=") {
			cmd.Env = append(cmd.Env, entry)
		}
	}
	cmd.Env = append(cmd.Env, b.env...)
	return cmd
}

// A result is what a call has come to.
type result struct {
	code           int
	stdout, stderr string
}

// run calls bridgectl and waits for its end.
func (b *tool) run(args ...string) result {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	cmd := b.command(ctx, "bridgectl", args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		b.t.Fatalf("bridgectl %s: %v, %v\n%s%s", strings.Join(args, " "), err, ctx.Err(), &stdout, &stderr)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// must is run for a call that has to succeed; it returns standard output.
func (b *tool) must(args ...string) string {
	b.t.Helper()
	r := b.run(args...)
	if r.code != 0 || r.stderr != "" {
		b.t.Fatalf("bridgectl %s: exit code %d, stderr %q, stdout\n%s", strings.Join(args, " "), r.code, r.stderr, r.stdout)
	}
	return r.stdout
}

// json is must with -o json, decoded into answer.
func (b *tool) json(answer any, args ...string) {
	b.t.Helper()
	text := b.must(append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(text), answer); err != nil {
		b.t.Fatalf("bridgectl %s: %v:\n%s", strings.Join(args, " "), err, text)
	}
}
