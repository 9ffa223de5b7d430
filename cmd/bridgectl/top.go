package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"time"

	"github.com/mattn/go-runewidth"
	"github.com/spf13/cobra"
)

// columns is the width of the narrowest terminal.
const columns = 80

func newTopCommand(a *app) *cobra.Command {
	c := &collector{app: a}
	var every time.Duration
	var times int
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show status again and again, with rates, until Ctrl-C",
		Long: `Shows what status shows, each second, with the changes since the last look: on a
terminal in place, elsewhere one below the other, with -o json one line each. A server
that does not answer is shown as such, and asked again.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case every < 100*time.Millisecond:
				return misused("--every: must be 100ms at least")
			case times < 0:
				return misused("--times: must not be negative")
			}
			if err := c.check(); err != nil {
				return err
			}
			defer c.close()
			return a.top(cmd.Context(), c, every, times)
		},
	}
	c.flags(cmd)
	cmd.Flags().DurationVar(&every, "every", time.Second, "the time between two looks")
	cmd.Flags().IntVar(&times, "times", 0, "end after so many looks (0: never)")
	return cmd
}

// top looks until ctx ends, which is the ordinary end.
func (a *app) top(ctx context.Context, c *collector, every time.Duration, times int) error {
	live := a.format != formatJSON && isTerminal(a.stdout) && os.Getenv("TERM") != "dumb"
	if live {
		s := screen{a.stdout}
		s.enter()
		defer s.leave()
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for n := 1; ; n++ {
		facts := c.collect(ctx)
		if ctx.Err() != nil {
			return nil
		}
		var err error
		switch {
		case live:
			err = screen{a.stdout}.show(frame(facts, c.app.config.Queue, every))
		case a.format == formatJSON:
			err = a.printLine(facts)
		default:
			_, err = io.WriteString(a.stdout, strings.Join(frame(facts, c.app.config.Queue, every), "\n")+"\n\n")
		}
		if err != nil || n == times {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// frame is what is shown at once: lines of at most so many columns.
func frame(facts *statusFacts, queue string, every time.Duration) []string {
	var text bytes.Buffer
	p := &page{w: &text}
	p.line("%s", facts.headline(queue, every))
	p.space()
	facts.write(p)
	lines := strings.Split(strings.TrimRight(text.String(), "\n"), "\n")
	for i, line := range lines {
		lines[i] = runewidth.Truncate(strings.TrimRight(line, " "), columns, "…")
	}
	return lines
}

// A screen is a terminal that is drawn over again and again. The escape sequences are
// those that every terminal has.
type screen struct{ w io.Writer }

func (s screen) enter() { _, _ = io.WriteString(s.w, "\x1b[?1049h\x1b[?25l") } // the other screen, no cursor
func (s screen) leave() { _, _ = io.WriteString(s.w, "\x1b[?25h\x1b[?1049l") }

func (s screen) show(lines []string) error {
	const home, clearLine, clearBelow = "\x1b[H", "\x1b[K", "\x1b[J"
	_, err := io.WriteString(s.w, home+strings.Join(lines, clearLine+"\r\n")+clearLine+clearBelow)
	return err
}
