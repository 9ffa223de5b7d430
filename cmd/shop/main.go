// Shop is an example of an application that sends through the bridge: it places an
// order again and again, and each order's e-mail goes to the e-mail gateway if and
// only if its transaction commits; place in shop.go is the part to read. The compose
// stack has it to give the verifier something to do. Its configuration is the
// environment; shop -help lists it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// The exit codes; -help documents them.
const (
	exitDone    = 0
	exitFailed  = 1
	exitMisused = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program. ctx ends with the first signal; the configuration is the
// process's environment.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("shop", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		if err := help(stdout); err != nil {
			return fail(stderr, exitFailed, err)
		}
		return exitDone
	case err != nil:
		return fail(stderr, exitMisused, fmt.Errorf("%w; see shop -help", err))
	case flags.NArg() > 0:
		return fail(stderr, exitMisused, fmt.Errorf("argument %q is not understood; see shop -help", flags.Arg(0)))
	}
	c, err := load()
	if err != nil {
		return fail(stderr, exitMisused, err)
	}
	if err := keep(ctx, c, c.Log.Logger(stderr)); err != nil && ctx.Err() == nil {
		return fail(stderr, exitFailed, err)
	}
	return exitDone
}

// fail writes what went wrong as one line; drivers write several.
func fail(stderr io.Writer, code int, err error) int {
	fmt.Fprintf(stderr, "shop: %s\n", strings.Join(strings.Fields(err.Error()), " "))
	return code
}
