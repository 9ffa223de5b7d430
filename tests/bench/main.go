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

// A scenario is one row of the comparison.
type scenario struct {
	name     string
	what     string   // what is compared, for the report
	headline headline // in what contenders are set against this project; may be empty
	run      func(ctx context.Context, w *world) error
}

var scenarios = []scenario{
	drainScenario, liveScenario, latencyScenario, transactionScenario, fiveScenario, orderedScenario, billScenario,
	contentionScenario, slowScenario, growthScenario, shardsScenario, receiveScenario,
}

// direct runs the chosen scenarios and writes the report.
func direct(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	var c config
	var names, contenders, draw string
	flags.StringVar(&names, "run", "", "`scenarios` to run, with commas between them (default: all)")
	flags.StringVar(&contenders, "only", "", "a `pattern` of the contenders' names (default: those that a scenario is made for)")
	flags.BoolVar(&c.long, "long", false, "longer measurements, more rounds and points")
	flags.IntVar(&c.rounds, "rounds", 0, "rounds of every comparison (default 2, with -long 5)")
	flags.DurationVar(&c.window, "window", 0, "the `length` of one measurement (default 1.5s, with -long 10s)")
	flags.IntVar(&c.backlog, "backlog", 50_000, "`messages` that are staged and then drained")
	flags.Func("workers", "concurrent transactions of the scenarios live, contention and five, with commas between them (default 1,8,32,128)", c.workers.set)
	flags.Func("rates", "transactions per second of the scenarios latency and five, with commas between them (default 100,300,500 and half of the most; 200)", c.rates.set)
	flags.DurationVar(&c.network, "network", 0, "have what goes to a server or comes from it arrive `late` by this, as over a network; not for the scenario contention, which uses MariaDB (0: there is none)")
	flags.StringVar(&c.out, "out", "out", "the `folder` for results.md, results.json and the pictures")
	flags.StringVar(&draw, "draw", "", "run nothing: draw the pictures of a `results.md` again, beside it")
	flags.BoolVar(&c.profile, "profile", false, "write CPU profiles of the project's processes, beside the results")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "bench compares the bridge with what people would pick instead. It runs:")
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
			_, err = drawAll(filepath.Dir(draw), r)
		}
		return err
	}
	c.rounds = cmp.Or(c.rounds, pick(c.long, 5, 2))
	c.window = cmp.Or(c.window, pick(c.long, 10*time.Second, 1500*time.Millisecond))
	if c.network < 0 {
		return errors.New("flag -network: must not be negative")
	}
	if c.rounds < 1 || c.window < 1 || c.backlog < 1 {
		return errors.New("flags -rounds, -window and -backlog: must be positive")
	}
	var err error
	if c.only, err = regexp.Compile(contenders); err != nil {
		return fmt.Errorf("flag -only: %w", err)
	}
	chosen, err := choose(names)
	if err != nil {
		return err
	}
	if c.network > 0 && slices.ContainsFunc(chosen, func(s scenario) bool { return s.name == contentionScenario.name }) {
		return errors.New("flag -network: not for the scenario contention, which uses MariaDB too: name the others with -run")
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
	begun := time.Now()
	for _, s := range chosen {
		w.say("== %s: %s", s.name, s.what)
		if err = s.run(ctx, w); err != nil {
			err = fmt.Errorf("%s: %w", s.name, err)
			break // what was measured before is reported all the same
		}
	}
	w.say("== took %s", time.Since(begun).Round(time.Second))
	return errors.Join(err, w.report.write(w, chosen))
}

// config is the command line.
type config struct {
	long    bool
	rounds  int
	window  time.Duration
	backlog int
	network time.Duration // each way
	workers numbers
	rates   numbers
	only    *regexp.Regexp
	out     string
	profile bool
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

// numbers is a list on the command line.
type numbers []int

func (n *numbers) set(text string) error {
	for field := range strings.SplitSeq(text, ",") {
		var number int
		if _, err := fmt.Sscan(field, &number); err != nil || number < 1 {
			return fmt.Errorf("%q is not a positive number", field)
		}
		*n = append(*n, number)
	}
	return nil
}

func (n numbers) or(standard ...int) []int {
	if len(n) > 0 {
		return n
	}
	return standard
}

func pick[T any](first bool, a, b T) T {
	if first {
		return a
	}
	return b
}
