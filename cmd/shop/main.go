// Shop is an example of an application that sends through the bridge. It places orders, and each
// order's e-mail goes to the e-mail gateway if and only if the order's transaction commits. Read
// place in shop.go first. In the compose stack it produces the messages. shop -help lists its
// environment variables.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/twoqueue/twoqueue/cmd/internal/advice"
	"github.com/twoqueue/twoqueue/cmd/internal/environment"
	"github.com/twoqueue/twoqueue/cmd/internal/program"
)

// The exit codes; -help documents them.
const (
	exitDone    = 0
	exitFailed  = 1
	exitMisused = 2
)

func main() { program.Main(run) }

// run is the program. ctx ends with the first signal.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("shop", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	migrating := flags.Bool("migrate", false, "")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		environment.Help(stdout, prefix, new(config), helpHead, helpTail)
		return exitDone
	case err != nil:
		return fail(stderr, exitMisused, fmt.Errorf("%w; see shop -help", err))
	case flags.NArg() > 0:
		return fail(stderr, exitMisused, fmt.Errorf("argument %q is not understood; see shop -help", flags.Arg(0)))
	}
	c, err := load(*migrating)
	if err != nil {
		return fail(stderr, exitMisused, err)
	}
	if *migrating {
		err = makeTable(ctx, c, stdout, stderr)
	} else {
		err = keep(ctx, c, c.Log.Logger(stderr))
	}
	switch {
	case err != nil && ctx.Err() != nil && *migrating:
		return fail(stderr, exitFailed, errors.New("interrupted; run shop -migrate again"))
	case err == nil || ctx.Err() != nil:
		return exitDone
	case advice.Misuse(err):
		return fail(stderr, exitMisused, advice.Explain(prefix, err))
	default:
		return fail(stderr, exitFailed, advice.Explain(prefix, err))
	}
}

// fail writes the error as one line, and returns code.
func fail(stderr io.Writer, code int, err error) int {
	fmt.Fprintf(stderr, "shop: %s\n", advice.Line(err.Error()))
	return code
}
