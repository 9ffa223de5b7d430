// Demo shows the whole bridge at work on one machine. A shop places orders in transactions; some roll
// back, stay open for long, or lose their process. A verifier is killed and replaced. Two e-mail
// gateways send an e-mail for each order to a mail server, and are killed in the middle of their
// e-mails. The demo ends with a count, and with an error if a single e-mail was lost, invented or sent
// twice.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/twoqueue/twoqueue/cmd/internal/environment"
	"github.com/twoqueue/twoqueue/cmd/internal/program"
	"github.com/twoqueue/twoqueue/cmd/internal/transit"
)

const help = `Usage: demo [-orders N]

Shows the bridge at work for about half a minute. A shop places orders in
transactions; some of these roll back, stay open for long, or lose their process.
A verifier is killed and replaced. Two e-mail gateways send one e-mail for each
order to a mail server, and are killed in the middle of their e-mails. The demo
starts its own processes and ends them, also after Ctrl-C.
The gateway is the program email-gateway in the demo's folder. If it is missing,
the demo builds it: then run the demo in the project's folder.

  -orders N  how many orders to place (default 4000)
  -version   print the build's release, revision and Go version

Environment:
  BRIDGE_AMQP_URL      a RabbitMQ to use (default: a private one is started)
  BRIDGE_DATABASE_URL  a PostgreSQL to use (default: SQLite files)
  BRIDGE_INSECURE      true allows other machines without verified TLS

Exit codes: 0 if every committed order's e-mail was received once, and no other;
1 if not, or if the demo could not run; 2 for a wrong flag.
`

// config is the environment and the flags.
type config struct {
	Database struct{ URL string }
	AMQP     struct{ URL string }
	Insecure transit.Insecure
	Orders   int `ignored:"true"`
}

func main() {
	if text := os.Getenv(partVariable); text != "" {
		os.Exit(playPart(text))
	}
	program.Main(run)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var c config
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.IntVar(&c.Orders, "orders", 4000, "")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, help)
		return 0
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("argument %q is not understood", flags.Arg(0))
	case err == nil && (c.Orders < 1 || c.Orders > 1_000_000):
		err = errors.New("-orders must be from 1 to 1000000")
	}
	if err != nil {
		fmt.Fprintf(stderr, "demo: %v; see demo -help\n", err)
		return 2
	}
	if err := environment.ReadShared("BRIDGE", &c); err != nil { // the verifiers' variables may be set
		fmt.Fprintf(stderr, "demo: %v\n", err)
		return 2
	}
	if err := errors.Join(transit.Refuse(c.Insecure, "BRIDGE_DATABASE_URL", transit.Database)(c.Database.URL),
		transit.Refuse(c.Insecure, "BRIDGE_AMQP_URL", transit.Broker)(c.AMQP.URL)); err != nil {
		fmt.Fprintf(stderr, "demo: %v\n", err)
		return 2
	}
	v, err := play(ctx, c, stdout)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted; everything is taken down")
		}
		fmt.Fprintf(stderr, "demo: %s\n", strings.Join(strings.Fields(err.Error()), " "))
		return 1
	}
	return conclude(stdout, v)
}

// conclude writes the verdict and returns the exit code.
func conclude(out io.Writer, v *verdict) int {
	report(out, v)
	if !v.ok() {
		return 1
	}
	return 0
}

// play builds a world, runs the demo in it, and judges the result.
func play(ctx context.Context, c config, out io.Writer) (v *verdict, err error) {
	t, err := build(ctx, c, out)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	d := &director{theatre: t, show: newDisplay(out, c.Orders)}
	if err := d.run(ctx); err != nil {
		return nil, err
	}
	r, err := readRecords(ctx, t.dbs)
	if err != nil {
		return nil, err
	}
	r.arrivals, r.emails, r.doubts = t.copies.arrivals(), t.mail.receipts(), d.doubts
	end, err := t.counts(ctx)
	if err != nil {
		return nil, err
	}
	r.pending = end.Pending
	through, dead := t.queues()
	if r.left, err = t.depth(ctx, through); err != nil {
		return nil, err
	}
	if r.carried, err = t.dbs.carried(ctx); err != nil {
		return nil, err
	}
	if r.dead, err = t.depth(ctx, dead); err != nil {
		return nil, err
	}
	return judge(r), nil
}
