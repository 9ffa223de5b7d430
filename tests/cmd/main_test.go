// Package cmd_test runs the commands as their users do: the real binaries, with
// an environment, signals and real servers.
package cmd_test

import (
	"slices"
	"testing"

	"github.com/twoqueue/twoqueue/tests/program"
)

func TestMain(m *testing.M) { program.Main(m) }

// A process is a command that has been started.
type process struct {
	*program.Process
	t *testing.T
}

// defaults are for all: any number of workers on one machine, and logs to read.
var defaults = []string{"BRIDGE_HTTP_ADDR=127.0.0.1:0", "BRIDGE_LOG_FORMAT=text"}

// start starts a command; args are its arguments and its variables.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	return &process{program.Start(t, name, append(slices.Clone(defaults), args...)...), t}
}
