// Verifier is the worker between the two queues. It forwards the messages of committed transactions
// from the staging queue to their targets, and drops the messages of rolled-back ones. It is package
// verifier, configured by the environment; verifier -help lists the variables.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/twoqueue/twoqueue/cmd/internal/advice"
	"github.com/twoqueue/twoqueue/cmd/internal/endpoints"
	"github.com/twoqueue/twoqueue/cmd/internal/environment"
	"github.com/twoqueue/twoqueue/cmd/internal/program"
	"github.com/twoqueue/twoqueue/verifier"
)

// The exit codes; -help documents them.
const (
	exitDone       = 0
	exitFailed     = 1
	exitMisused    = 2
	exitNotDrained = 3
	exitDatabase   = 4
	exitBroker     = 5
	exitSchema     = 6
	exitProof      = 7
)

// collectAt is the GC percentage unless GOGC is set: a collection begins when the heap has grown to
// five times the live data. The live data is small, bounded by BRIDGE_PREFETCH, and replaced many
// times a second.
const collectAt = 400

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
	program.Main(run)
}

// run is the program. ctx ends with the first signal.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("verifier", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	migrating := flags.Bool("migrate", false, "")
	asking := flags.Bool("health", false, "")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		environment.Help(stdout, prefix, new(config), helpHead, helpTail)
		return exitDone
	case err != nil:
		return fail(stderr, exitMisused, fmt.Errorf("%w; see verifier -help", err))
	case flags.NArg() > 0:
		return fail(stderr, exitMisused, fmt.Errorf("argument %q is not understood; see verifier -help", flags.Arg(0)))
	}
	c, err := load(*migrating)
	if err != nil {
		return fail(stderr, exitMisused, err)
	}
	switch {
	case *asking:
		return health(ctx, c, stdout, stderr)
	case *migrating:
		if err = migrate(ctx, c, stdout, stderr); err != nil && ctx.Err() != nil {
			return fail(stderr, exitFailed, errors.New("interrupted; run verifier -migrate again"))
		}
	default:
		err = work(ctx, c, stderr)
	}
	if err != nil && (ctx.Err() == nil || errors.Is(err, verifier.ErrNotDrained)) {
		return fail(stderr, exitCode(err), explain(err))
	}
	return exitDone
}

// fail writes the error as one line, and returns code.
func fail(stderr io.Writer, code int, err error) int {
	fmt.Fprintf(stderr, "verifier: %s\n", advice.Line(err.Error()))
	return code
}

func migrate(ctx context.Context, c config, stdout, stderr io.Writer) error {
	db, err := c.Schema.Await(ctx, c.Database.URL, advice.Waiting(stderr, "verifier", "BRIDGE_DATABASE_URL"))
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

// health queries the readiness of the worker that runs with the same configuration.
func health(ctx context.Context, c config, stdout, stderr io.Writer) int {
	if c.HTTP.Addr == environment.None {
		return fail(stderr, exitMisused, errors.New("BRIDGE_HTTP_ADDR: is none, so -health has no address to query; set it"))
	}
	if err := endpoints.Ask(ctx, string(c.HTTP.Addr), "/readyz"); err != nil {
		return fail(stderr, exitFailed, err)
	}
	fmt.Fprintln(stdout, "ok")
	return exitDone
}
