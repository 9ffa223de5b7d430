package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/mattn/go-isatty"

	"github.com/twoqueue/twoqueue/cmd/internal/terminal"
)

// outputFormat is the flag -o.
type outputFormat string

const (
	formatTable outputFormat = "table"
	formatJSON  outputFormat = "json"
)

// String, Set and Type implement pflag.Value.
func (f *outputFormat) String() string { return string(*f) }
func (f *outputFormat) Type() string   { return "table|json" }
func (f *outputFormat) Set(text string) error {
	switch given := outputFormat(text); given {
	case formatTable, formatJSON:
		*f = given
		return nil
	}
	return fmt.Errorf("%q is not usable; give table or json", text)
}

// A view is the answer of a command. It writes its text form; encoding/json makes the other.
type view interface {
	write(p *page)
}

// print writes the answer in the form that -o chooses.
func (a *app) print(v view) error {
	if a.format == formatJSON {
		return terminal.JSON(a.stdout, v)
	}
	p := &page{w: a.stdout, color: hasColor(a.stdout)}
	v.write(p)
	return p.err
}

// writeAll writes views with an empty line between them.
func writeAll[V view](p *page, views []V) {
	for i, v := range views {
		if i > 0 {
			p.space()
		}
		v.write(p)
	}
}

// A page is the destination of a view's text. Text from a message or a server must go through
// terminal.Plain. The methods line, title and table do so with their arguments; write does not.
type page struct {
	w     io.Writer
	color bool
	err   error // the first error
}

func (p *page) write(text string) {
	if p.err == nil {
		_, p.err = io.WriteString(p.w, text)
	}
}

// line writes a line. Arguments that are strings may hold anything.
func (p *page) line(format string, args ...any) {
	for i, arg := range args {
		if text, ok := arg.(string); ok {
			args[i] = terminal.Plain(text)
		}
	}
	p.write(fmt.Sprintf(format, args...) + "\n")
}

// title writes the heading of a part.
func (p *page) title(text string) { p.write(p.paint(bold, terminal.Plain(text)) + "\n") }

// space writes an empty line.
func (p *page) space() { p.write("\n") }

// table writes rows in columns, under head unless that is nil.
func (p *page) table(head []string, rows [][]string) {
	if p.err != nil {
		return
	}
	w := tabwriter.NewWriter(p.w, 0, 0, 2, ' ', 0)
	if head != nil {
		rows = append([][]string{head}, rows...)
	}
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = terminal.Plain(cell)
		}
		// Empty cells at the end of a row would become spaces.
		if _, err := fmt.Fprintln(w, strings.TrimRight(strings.Join(cells, "\t"), "\t")); err != nil {
			p.err = err
			return
		}
	}
	p.err = w.Flush()
}

// rowsOf returns the rows of a table, one for each item.
func rowsOf[T any](items []T, row func(T) []string) [][]string {
	rows := make([][]string, len(items))
	for i, item := range items {
		rows[i] = row(item)
	}
	return rows
}

// list writes rows in columns with an empty line below them, or nothing if there are none.
func (p *page) list(head []string, rows [][]string) {
	if len(rows) > 0 {
		p.table(head, rows)
		p.space()
	}
}

// moreText ends the last line of a list if there may be more than --limit allows.
func moreText(limited bool) string {
	if limited {
		return "; there may be more (--limit)"
	}
	return ""
}

// A style is an escape sequence of terminals.
type style string

const (
	bold   style = "\x1b[1m"
	red    style = "\x1b[31m"
	green  style = "\x1b[32m"
	yellow style = "\x1b[33m"
	cyan   style = "\x1b[36m"
	dim    style = "\x1b[2m"
	reset  style = "\x1b[0m"
)

// paint puts text into a style, if the page has colour.
func (p *page) paint(s style, text string) string {
	if !p.color || text == "" {
		return text
	}
	return string(s) + text + string(reset)
}

// hasColor reports whether w may get escape sequences: it is a terminal that is not dumb, and
// NO_COLOR is not set (no-color.org).
func hasColor(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && isatty.IsTerminal(file.Fd()) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
