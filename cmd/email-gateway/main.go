package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/twoqueue/twoqueue/cmd/email-gateway/internal/email"
	"github.com/twoqueue/twoqueue/cmd/internal/advice"
	"github.com/twoqueue/twoqueue/cmd/internal/endpoints"
	"github.com/twoqueue/twoqueue/cmd/internal/environment"
	"github.com/twoqueue/twoqueue/cmd/internal/program"
)

// The exit codes; -help documents them.
const (
	exitDone       = 0
	exitFailed     = 1
	exitMisused    = 2
	exitNotDrained = 3
)

func main() { program.Main(run) }

// run is the program. ctx ends with the first signal.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("email-gateway", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	asking := flags.Bool("health", false, "")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		environment.Help(stdout, prefix, new(config), helpHead, helpTail)
		return exitDone
	case err != nil:
		return fail(stderr, exitMisused, fmt.Errorf("%w; see email-gateway -help", err))
	}
	switch args := flags.Args(); {
	case *asking && len(args) == 0:
		return health(ctx, stdout, stderr)
	case *asking:
		return fail(stderr, exitMisused, errors.New("-health takes no arguments; see email-gateway -help"))
	case len(args) == 0:
		return with(stderr, true, func(c *config) error { return work(ctx, c, stderr) })
	case slices.Equal(args, []string{"schema"}):
		fmt.Fprint(stdout, email.Schema)
		return exitDone
	case slices.Equal(args, []string{"migrate"}):
		return with(stderr, false, func(c *config) error { return migrate(ctx, c, stdout, stderr) })
	case len(args) > 1 && args[0] == "doubtful":
		ask, err := parseDoubtful(args[1:])
		if err != nil {
			return fail(stderr, exitMisused, err)
		}
		return with(stderr, false, func(c *config) error { return ask(ctx, c, stdout, stderr) })
	default:
		return fail(stderr, exitMisused, fmt.Errorf("%q is not understood; see email-gateway -help", strings.Join(args, " ")))
	}
}

// with reads the configuration, calls do with it, and returns the exit code.
func with(stderr io.Writer, sending bool, do func(c *config) error) int {
	c, err := load(sending)
	if err != nil {
		return fail(stderr, exitMisused, err)
	}
	switch err := do(c); {
	case errors.Is(err, errNotDrained):
		return fail(stderr, exitNotDrained, err)
	case err == nil, sending && errors.Is(err, context.Canceled): // a signal during the start
		return exitDone
	case errors.Is(err, context.Canceled):
		return fail(stderr, exitFailed, errors.New("interrupted; run it again"))
	case advice.Misuse(err):
		return fail(stderr, exitMisused, explain(err))
	default:
		return fail(stderr, exitFailed, explain(err))
	}
}

// health queries the readiness of the gateway that runs with the same configuration.
func health(ctx context.Context, stdout, stderr io.Writer) int {
	c, err := load(true)
	if err != nil {
		return fail(stderr, exitMisused, err)
	}
	if c.HTTP.Addr == environment.None {
		return fail(stderr, exitMisused, errors.New("EMAIL_HTTP_ADDR: is none, so -health has no address to query; set it"))
	}
	if err := endpoints.Ask(ctx, string(c.HTTP.Addr), "/readyz"); err != nil {
		return fail(stderr, exitFailed, err)
	}
	fmt.Fprintln(stdout, "ok")
	return exitDone
}

// fail writes the error as one line, and returns code.
func fail(stderr io.Writer, code int, err error) int {
	fmt.Fprintf(stderr, "email-gateway: %s\n", advice.Line(err.Error()))
	return code
}

func migrate(ctx context.Context, c *config, stdout, stderr io.Writer) error {
	db, err := c.Schema.Await(ctx, c.Database.URL, advice.Waiting(stderr, "email-gateway", "EMAIL_DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.MigrateInbox(ctx); err != nil {
		return err
	}
	if err := db.MigrateTables(ctx, tables, part, part); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "the tables are there")
	return nil
}
