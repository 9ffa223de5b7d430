// Verifier is the worker between the two queues: it forwards the messages of
// committed transactions from the staging queue to their targets, and drops
// those of rolled-back ones. It is package verifier with a configuration from
// the environment; verifier -help lists it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/verifier"
)

// The exit codes; -help documents them.
const (
	exitDone    = 0
	exitFailed  = 1
	exitMisused = 2
)

// collectAt lets the heap grow to five times what is in use before it is
// collected, where GOGC does not say otherwise: what is in use is small, bounded
// by BRIDGE_PREFETCH, and replaced many times a second.
const collectAt = 400

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program. ctx ends with the first signal; the configuration is the
// process's environment.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("verifier", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	migrating := flags.Bool("migrate", false, "")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return help(stdout, stderr)
	case err != nil:
		return fail(stderr, exitMisused, fmt.Errorf("%w; see verifier -help", err))
	case flags.NArg() > 0:
		return fail(stderr, exitMisused, fmt.Errorf("argument %q is not understood; see verifier -help", flags.Arg(0)))
	}
	c, err := load(*migrating)
	if err != nil {
		return fail(stderr, exitMisused, err)
	}
	if *migrating {
		err = migrate(ctx, c, stdout)
	} else {
		err = work(ctx, c, stderr)
	}
	if err != nil && ctx.Err() == nil {
		return fail(stderr, exitFailed, explain(err))
	}
	return exitDone
}

// fail writes what went wrong as one line. Drivers write several, one for each
// attempt to connect.
func fail(stderr io.Writer, code int, err error) int {
	lines := strings.Split(err.Error(), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	fmt.Fprintf(stderr, "verifier: %s\n", strings.Join(slices.Compact(lines), " "))
	return code
}

func migrate(ctx context.Context, c config, stdout io.Writer) error {
	db, err := database.Create(ctx, c.Database.URL)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.MigrateLedger(ctx); err != nil {
		return err
	}
	ledger, err := db.Ledger(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "the tables are there; the ledger's identity is %s\n", ledger.Identity())
	return nil
}

// work verifies until ctx ends.
func work(ctx context.Context, c config, stderr io.Writer) error {
	logger := c.Log.Logger(stderr)
	db, err := database.Open(ctx, c.Database.URL)
	if err != nil {
		return err
	}
	defer db.Close()
	ledger, err := db.Ledger(ctx)
	if err != nil {
		return err
	}
	broker, err := bridge.Dial(ctx, c.AMQP.URL, &bridge.BrokerOptions{Name: "verifier", Logger: logger})
	if err != nil {
		return &brokerError{err}
	}
	defer broker.Close()
	v, err := verifier.New(ledger, broker, c.options(logger))
	if err != nil {
		return err
	}
	return v.Run(ctx)
}
