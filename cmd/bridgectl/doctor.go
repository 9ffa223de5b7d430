package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/cmd/internal/advice"
	"github.com/twoqueue/twoqueue/cmd/internal/terminal"
	"github.com/twoqueue/twoqueue/cmd/internal/transit"
)

// The parts that the doctor can examine.
const (
	partDatabase = "database"
	partBroker   = "broker"
)

func newDoctorCommand(a *app) *cobra.Command {
	var quiet bool
	var workers, receivers []string
	cmd := &cobra.Command{
		Use:         "doctor [database] [broker]",
		Annotations: map[string]string{piecemeal: "true"},
		Short:       "Examine the database and the broker: problems and their fixes",
		Long: `Looks for problems that would lose, stop or delay messages: whether the ledger's lookup
waits for open transactions, how the database is set up, whether the queues exist with
the right arguments, the effects of policies, alarms, rights, versions, dead messages, the
server of an inbox. Each check ends as ok, warning or error, or as unknown if the login may
not look. A check that is not ok has a fix.

Changes nothing permanently. The proof inserts a few rows and deletes them, as a verifier
does when it starts. The doctor also publishes two messages to a queue that does not exist;
the broker returns them. It takes no message from a queue.

Many checks of the broker need its management API: set BRIDGE_MANAGEMENT_URL, with a user
that has the tag monitoring and a permission on the virtual host, even an empty one
(rabbitmqctl set_permissions USER '^$' '^$' '^$'). To see the login's rights, that user
needs the tag administrator.

The exit code is 3 if there is an error, and 0 if there are only warnings.`,
		Args:      cobra.MatchAll(cobra.OnlyValidArgs, cobra.MaximumNArgs(2)),
		ValidArgs: []string{partDatabase, partBroker},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{partDatabase, partBroker}
			}
			return a.doctor(cmd.Context(), args, workers, receivers, quiet)
		},
	}
	cmd.Flags().StringSliceVar(&workers, "worker", nil, "also ask the worker with this status page, such as http://127.0.0.1:8082, which targets accept nothing; may be repeated")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "leave out checks that are ok")
	cmd.Flags().StringSliceVar(&receivers, "receiver", nil, "also examine this queue of a receiver: whether its dead messages are safe; may be repeated")
	return cmd
}

// doctor examines the parts concurrently, and prints the findings.
func (a *app) doctor(ctx context.Context, parts, workers, receivers []string, quiet bool) error {
	if slices.Contains(parts, partDatabase) && a.config.Database.URL == "" {
		return misused("BRIDGE_DATABASE_URL: is not set; name the database that holds the ledger, or examine the broker alone with bridgectl doctor broker")
	}
	if slices.Contains(parts, partBroker) && a.config.AMQP.URL == "" {
		return misused("BRIDGE_AMQP_URL: is not set; name the broker, or examine the database alone with bridgectl doctor database")
	}
	m, err := a.management()
	if err != nil {
		return err
	}
	var database, broker []group
	var examinations sync.WaitGroup
	if slices.Contains(parts, partDatabase) {
		examinations.Go(func() { database = a.examineDatabase(ctx) })
	}
	if slices.Contains(parts, partBroker) {
		examinations.Go(func() { broker = a.examineBroker(ctx, m, receivers) })
	}
	examinations.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	groups := append(database, broker...)
	last := &groups[len(groups)-1]
	a.examineShared(ctx, last)
	a.examineOtherQueues(ctx, last, m)
	if err := a.examineLost(ctx, last, m); err != nil {
		return err
	}
	if len(workers) > 0 {
		groups = append(groups, examineWorkers(ctx, workers))
	}
	d := newDiagnosis(groups)
	if quiet {
		d.leaveOutOK()
	}
	if err := a.print(d); err != nil {
		return err
	}
	if d.Errors > 0 {
		return &exitError{exitUnwell}
	}
	return nil
}

// A diagnosis has all findings of the doctor.
type diagnosis struct {
	Groups   []group `json:"groups"`
	Errors   int     `json:"errors"`
	Warnings int     `json:"warnings"`
	Unknown  int     `json:"unknown"`
	OK       int     `json:"ok"`
}

// A group has the findings about one place, such as the database or the queues.
type group struct {
	Name     string            `json:"name"`
	Findings []inspect.Finding `json:"findings"`
}

func newDiagnosis(groups []group) *diagnosis {
	d := &diagnosis{Groups: groups}
	for _, g := range groups {
		for _, f := range g.Findings {
			switch f.Level {
			case inspect.Error:
				d.Errors++
			case inspect.Warning:
				d.Warnings++
			case inspect.Unknown:
				d.Unknown++
			default:
				d.OK++
			}
		}
	}
	return d
}

// leaveOutOK removes the findings that are ok, and the groups that have no other. The counts
// still include them.
func (d *diagnosis) leaveOutOK() {
	groups := make([]group, 0, len(d.Groups))
	for _, g := range d.Groups {
		g.Findings = slices.DeleteFunc(slices.Clone(g.Findings), func(f inspect.Finding) bool { return f.Level == inspect.OK })
		if len(g.Findings) > 0 {
			groups = append(groups, g)
		}
	}
	d.Groups = groups
}

// A check adds the findings of one check to its group.
type check struct {
	group  *group
	name   string
	before int // findings of the group when the check began
}

func (g *group) check(name string) *check { return &check{g, name, len(g.Findings)} }

func (c *check) ok(format string, args ...any) { c.add(inspect.OK, "", format, args...) }

func (c *check) warn(fix, format string, args ...any) { c.add(inspect.Warning, fix, format, args...) }

func (c *check) fail(fix, format string, args ...any) { c.add(inspect.Error, fix, format, args...) }

func (c *check) unknown(fix, format string, args ...any) {
	c.add(inspect.Unknown, fix, format, args...)
}

func (c *check) add(level inspect.Level, fix, format string, args ...any) {
	c.group.Findings = append(c.group.Findings, inspect.Finding{Check: c.name, Level: level, Text: advice.Line(fmt.Sprintf(format, args...)), Fix: fix})
}

// failed adds an error as a finding, with its fix.
func (c *check) failed(err error) { c.fail(fixFor(err), "%s", err) }

// hasFound reports whether the check has added a finding.
func (c *check) hasFound() bool { return len(c.group.Findings) > c.before }

// okIfNoneFound adds an ok finding if the check has added no other.
func (c *check) okIfNoneFound(format string, args ...any) {
	if !c.hasFound() {
		c.ok(format, args...)
	}
}

// fixFor returns the fix for an error, or refers to the error's text if no fix is known.
func fixFor(err error) string {
	text := fixOf(err)
	if text == "" && missingRight(err) {
		text = "run the statements in the findings about rights"
	}
	return cmp.Or(text, "see the error's text")
}

// examineTransit reports whether the traffic to a server can be read on the way.
func (c *check) examineTransit(variable string, found *transit.Exposure) {
	if found != nil {
		c.warn("in "+variable+", "+found.Fix, "%s", found)
		return
	}
	c.ok("%s requires verified TLS, or is local", variable)
}

// write prints the findings as text, each with its fix below it.
func (d *diagnosis) write(p *page) {
	const width = 100
	var checks int
	for _, g := range d.Groups {
		for _, f := range g.Findings {
			checks = max(checks, utf8.RuneCountInString(f.Check))
		}
	}
	for i, g := range d.Groups {
		if i > 0 {
			p.space()
		}
		p.title(g.Name)
		for _, f := range g.Findings {
			level := string(f.Level)
			head := "  " + p.paint(levelStyle[f.Level], level) + strings.Repeat(" ", len("warning")-len(level)+2)
			indent := strings.Repeat(" ", 2+len("warning")+2+checks+2)
			text := terminal.Wrap(terminal.Plain(f.Text), width-len(indent))
			p.write(head + pad(terminal.Plain(f.Check), checks+2) + text[0] + "\n")
			for _, line := range text[1:] {
				p.write(indent + line + "\n")
			}
			if f.Fix == "" {
				continue
			}
			for fix := range strings.SplitSeq(f.Fix, "\n") { // each statement begins a line
				for i, line := range terminal.Wrap(terminal.Plain(fix), width-len(indent)-2) {
					lead := "  "
					if i == 0 {
						lead = "> "
					}
					p.write(indent + p.paint(cyan, lead+line) + "\n")
				}
			}
		}
	}
	if len(d.Groups) > 0 {
		p.space()
	}
	p.write(d.summary(p) + "\n")
}

var levelStyle = map[inspect.Level]style{inspect.OK: green, inspect.Warning: yellow, inspect.Error: red, inspect.Unknown: dim}

func (d *diagnosis) summary(p *page) string {
	bad := func(n int, thing string, s style) string {
		if n == 0 {
			return "no " + thing + "s"
		}
		return p.paint(s, count(n, thing))
	}
	return fmt.Sprintf("%s, %s, %d unknown, %d ok", bad(d.Errors, "error", red), bad(d.Warnings, "warning", yellow), d.Unknown, d.OK)
}

func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}
