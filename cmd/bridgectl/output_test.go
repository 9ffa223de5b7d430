package main

import (
	"io"
	"strings"
	"testing"

	"github.com/creack/pty"
)

// Colour is for a terminal whose user wants it.
func TestColorIsForTerminals(t *testing.T) {
	screen, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	defer terminal.Close()
	for _, c := range []struct {
		w           io.Writer
		term, never string
		want        bool
	}{
		{terminal, "xterm", "", true}, {terminal, "xterm", "1", false}, {terminal, "dumb", "", false}, {new(strings.Builder), "xterm", "", false},
	} {
		t.Setenv("TERM", c.term)
		t.Setenv("NO_COLOR", c.never)
		if got := hasColor(c.w); got != c.want {
			t.Errorf("%T with TERM=%s and NO_COLOR=%s: %t", c.w, c.term, c.never, got)
		}
	}
}
