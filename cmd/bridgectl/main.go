// Bridgectl is the operator's tool: it creates the tables and the queues, examines
// the database and the broker, shows what is staged, waiting, dead, carried and
// orphaned, and moves what is stuck. It reads the same variables as the verifier, so
// that it can be run where a verifier runs, and changes nothing unless its command
// says so. README.md shows each command with its output.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/twoqueue/twoqueue/cmd/internal/mend"
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

// run is the program. ctx ends with the first signal; the configuration is the
// process's environment.
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
	case errors.As(err, &verdict): // all is said
		return verdict.code
	case ctx.Err() != nil:
		return fail(stderr, exitFailed, errors.New("interrupted"))
	case !a.running, errors.As(err, new(*misuse)):
		return fail(stderr, exitMisused, err)
	case mend.Misuse(err):
		return fail(stderr, exitMisused, explain(err))
	default:
		return fail(stderr, exitFailed, explain(err))
	}
}

// helped has -help, as the other commands of this project spell it, in cobra's spelling.
func helped(args []string) []string {
	args = slices.Clone(args)
	for i, arg := range args {
		if arg == "-help" {
			args[i] = "--help"
		}
	}
	return args
}

// exitError ends the program with a code and without another word.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// misuse is an error of whoever called the tool: a wrong argument, flag or variable.
type misuse struct{ error }

func (e *misuse) Unwrap() error { return e.error }

// misused makes an error that ends the program with exitMisused.
func misused(format string, args ...any) error { return &misuse{fmt.Errorf(format, args...)} }

// fail writes what went wrong as one line.
func fail(stderr io.Writer, code int, err error) int {
	fmt.Fprintf(stderr, "bridgectl: %s\n", mend.Line(err.Error()))
	return code
}
