// Bridgectl is the operator's tool. It creates the tables and the queues, examines the
// database and the broker, shows staged, waiting, dead, carried and orphaned messages, and
// replays or removes stuck ones. It reads the verifier's variables, so it runs wherever a
// verifier runs. It changes nothing unless its command says so. README.md shows each command
// with its output.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/twoqueue/twoqueue/cmd/internal/advice"
	"github.com/twoqueue/twoqueue/cmd/internal/program"
)

// The exit codes; the help documents them.
const (
	exitDone    = 0
	exitFailed  = 1
	exitMisused = 2
	exitUnwell  = 3 // the doctor has found errors
)

func main() { program.Main(run) }

// run runs the program and returns its exit code. The first signal ends ctx. The
// configuration comes from the process's environment.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	a := &app{stdout: stdout}
	defer a.close()
	root := newRoot(a)
	root.SetArgs(helped(args))
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	var verdict *exitError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &verdict): // the command has printed everything
		return verdict.code
	case ctx.Err() != nil:
		return fail(stderr, exitFailed, errors.New("interrupted"))
	case !a.running, errors.As(err, new(*misuse)):
		return fail(stderr, exitMisused, err)
	case advice.Misuse(err):
		return fail(stderr, exitMisused, explain(err))
	default:
		return fail(stderr, exitFailed, explain(err))
	}
}

// helped replaces -help, the spelling of this project's other commands, by cobra's --help.
func helped(args []string) []string {
	args = slices.Clone(args)
	for i, arg := range args {
		if arg == "-help" {
			args[i] = "--help"
		}
	}
	return args
}

// exitError ends the program with a code and no message.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// misuse is the caller's error: a wrong argument, flag or variable.
type misuse struct{ error }

func (e *misuse) Unwrap() error { return e.error }

// misused makes an error that ends the program with exitMisused.
func misused(format string, args ...any) error { return &misuse{fmt.Errorf(format, args...)} }

// fail writes the error as one line and returns the exit code.
func fail(stderr io.Writer, code int, err error) int {
	fmt.Fprintf(stderr, "bridgectl: %s\n", advice.Line(err.Error()))
	return code
}
