package main

import (
	"strings"
	"testing"
	"unicode"
)

// named is an answer with something that anybody may have written.
type named struct{ Name string }

func (n named) write(p *page) { p.line("%s", n.Name) }

func TestEveryFormIsSafeOnATerminal(t *testing.T) {
	for _, format := range []outputFormat{formatTable, formatJSON} {
		var text strings.Builder
		a := &app{stdout: &text, format: format}
		v := named{"a\x1b[2J\x7f\u009b31m\u202eb"}
		if err := a.print(v); err != nil {
			t.Fatal(err)
		}
		if err := a.printLine(v); err != nil {
			t.Fatal(err)
		}
		for _, r := range text.String() {
			if !unicode.IsPrint(r) && r != '\n' {
				t.Errorf("%s: %q is in %q", format, r, text.String())
			}
		}
	}
}
