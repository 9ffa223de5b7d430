package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/twoqueue/twoqueue/bridge/sqlserver"
)

// table holds the answers, by mode and question.
type table struct {
	modes   []string
	answers [][]string // by mode
	skipped []string   // modes
	failed  []string   // modes, with their errors
	server  []string   // the doctor's findings, by mode

	different int
}

// note adds the answer to question i in the latest mode.
func (t *table) note(i int, got string, asked error) {
	if i == 0 {
		t.answers = append(t.answers, nil)
	}
	want := questions[i].want
	switch {
	case asked != nil:
		got = "NOT ASKED: " + asked.Error()
	case want == "":
	case got == want:
		got = "as expected"
	default:
		got = "DIFFERENT: " + got
		t.different++
	}
	t.answers[len(t.answers)-1] = append(t.answers[len(t.answers)-1], got)
}

// describe adds the server's version and the doctor's findings.
func (t *table) describe(ctx context.Context, w *world) {
	var all []string
	var version string
	if err := w.db.QueryRowContext(ctx, "SELECT @@VERSION").Scan(&version); err == nil {
		all = append(all, strings.Join(strings.Fields(version), " "))
	}
	findings, err := sqlserver.Inspect(w.ledger).Diagnose(ctx)
	if err != nil {
		all = append(all, "doctor: "+err.Error())
	}
	for _, f := range findings {
		all = append(all, fmt.Sprintf("%s: %s: %s", f.Check, f.Level, f.Text))
	}
	t.server = append(t.server, strings.Join(all, "\n"))
}

func (t *table) print(out io.Writer) (different int, err error) {
	var b strings.Builder
	line := func(cells ...string) {
		for _, cell := range cells {
			b.WriteString("| " + strings.NewReplacer("|", `\|`, "\n", " ").Replace(cell) + " ")
		}
		b.WriteString("|\n")
	}
	line(append([]string{"#", "question", "expected"}, t.modes...)...)
	b.WriteString(strings.Repeat("|---", 3+len(t.modes)) + "|\n")
	for i, q := range questions {
		want := q.want
		if want == "" {
			want = "not known"
		}
		cells := []string{fmt.Sprint(i + 1), q.text, want}
		for _, answers := range t.answers {
			cells = append(cells, answers[i])
		}
		line(cells...)
	}
	for _, m := range t.skipped {
		fmt.Fprintf(&b, "\nThe database could not be switched to: %s.\n", m)
	}
	for _, f := range t.failed {
		fmt.Fprintf(&b, "\nNot asked to the end: %s\n", f)
	}
	for i, m := range t.modes {
		fmt.Fprintf(&b, "\n%s:\n%s\n", m, t.server[i])
	}
	_, err = io.WriteString(out, b.String())
	return t.different + len(t.failed), err
}
