package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	var err error
	if role := os.Getenv(roleVariable); role != "" {
		err = play(ctx, role)
	} else {
		err = direct(ctx, os.Args[1:])
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

// config has the command line's settings, and settings that only a test changes.
type config struct {
	long    bool
	rounds  int
	window  time.Duration
	network time.Duration // each way
	workers int           // 0: as the scenario says
	only    *regexp.Regexp
	out     string

	warmUp   time.Duration // warm-up before a contender's first measurement; half of it before later ones
	patience time.Duration // how long to wait for committed messages
	backlog  int           // messages that are staged and then drained
	inbox    int           // keys of a large inbox
	test     bool          // PostgreSQL does not wait for the disk, and a failed or missing message is an error
}

// catchUp is the default of config.patience.
const catchUp = 3 * time.Second

// direct runs the chosen scenarios and writes the report.
func direct(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	c := config{warmUp: time.Second, patience: catchUp, backlog: 50_000}
	var names, contenders, draw string
	flags.StringVar(&names, "run", "", "`scenarios` to run, with commas between them (default: all)")
	flags.StringVar(&contenders, "only", "", "a `pattern` of the contenders' names (default: each scenario's own contenders)")
	flags.BoolVar(&c.long, "long", false, "longer measurements, more rounds, a backlog of a million and inboxes of five")
	flags.IntVar(&c.rounds, "rounds", 0, "rounds of every comparison (default 2, with -long 5)")
	flags.DurationVar(&c.window, "window", 0, "the `length` of one measurement (default 1.5s, with -long 10s)")
	flags.IntVar(&c.workers, "workers", 0, "so many concurrent `transactions` alone in the scenarios live, ordered and five")
	flags.DurationVar(&c.network, "network", 0, "delay all bytes to and from a server by `late`, as over a network (0: no delay)")
	flags.StringVar(&c.out, "out", "out", "the `folder` for results.md and the picture")
	flags.StringVar(&draw, "draw", "", "run nothing: draw the picture of a `results.md` again, beside it")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "bench compares the bridge with its usual alternatives. It runs:")
		for _, s := range scenarios {
			fmt.Fprintf(flags.Output(), "  %-12s %s\n", s.name, s.what)
		}
		fmt.Fprintln(flags.Output(), "contenders:", strings.Join(contenderNames(), ", "))
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("argument %q is not understood; see -help", flags.Arg(0))
	}
	if draw != "" {
		r, err := readResults(draw)
		if err == nil {
			_, err = drawPicture(filepath.Dir(draw), r)
		}
		return err
	}
	c.rounds = cmp.Or(c.rounds, pick(c.long, 5, 2))
	c.window = cmp.Or(c.window, pick(c.long, 10*time.Second, 1500*time.Millisecond))
	c.inbox = pick(c.long, 5_000_000, 200_000)
	if c.rounds < 1 || c.window < 1 || c.workers < 0 || c.network < 0 {
		return errors.New("flags -rounds, -window, -workers and -network: must be positive")
	}
	var err error
	if c.only, err = regexp.Compile(contenders); err != nil {
		return fmt.Errorf("flag -only: %w", err)
	}
	chosen, err := choose(names)
	if err != nil {
		return err
	}
	if c.out, err = filepath.Abs(c.out); err != nil {
		return err
	}
	if err := os.MkdirAll(c.out, 0o755); err != nil {
		return err
	}

	w, err := newWorld(ctx, c)
	if err != nil {
		return err
	}
	defer w.close()
	for _, s := range chosen {
		w.say("== %s: %s", s.name, s.what)
		if err = w.compare(ctx, s.name, s.trials(c)); err != nil {
			err = fmt.Errorf("%s: %w", s.name, err)
			break // completed measurements are still reported
		}
	}
	w.say("== done")
	return errors.Join(err, w.report.write(w, chosen))
}

func choose(names string) ([]scenario, error) {
	if names == "" {
		return scenarios, nil
	}
	var chosen []scenario
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("flag -run: no scenario %q; see -help", name)
		}
		chosen = append(chosen, scenarios[i])
	}
	return chosen, nil
}

func pick[T any](first bool, a, b T) T {
	if first {
		return a
	}
	return b
}
