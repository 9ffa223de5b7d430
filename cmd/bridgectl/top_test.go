package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"github.com/creack/pty"
)

// One of its servers is away, and a worker forwards 500 messages between any two looks.
func TestTopOnATerminalKeepsToEightyColumnsAndLeavesItAsItWas(t *testing.T) {
	var looks atomic.Int64
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "# TYPE twoqueue_messages_total counter\ntwoqueue_messages_total{verdict=\"forwarded\"} %d\n", 500*looks.Add(1))
	}))
	defer worker.Close()
	env := []string{"TERM=xterm", "BRIDGE_DATABASE_URL=sqlite:" + filepath.Join(t.TempDir(), "ledger.db"),
		"BRIDGE_QUEUE=a-queue-with-a-name-that-is-much-longer-than-any-column-of-a-terminal-is-wide"}
	called(t, env, "migrate", "up")
	screen, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	var all bytes.Buffer
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(&all, screen) // until the terminal is closed
	}()
	code := run(t.Context(), []string{"top", "--times=3", "--every=100ms", "--worker=" + worker.URL, "--worker=http://127.0.0.1:1"}, terminal, io.Discard)
	if terminal.Close(); code != exitDone {
		t.Errorf("exit code %d", code)
	}
	<-ended
	text := all.String()
	if !strings.HasPrefix(text, "\x1b[?1049h\x1b[?25l") || !strings.HasSuffix(text, "\x1b[?25h\x1b[?1049l") {
		t.Errorf("it begins with %.20q and ends with %q", text, text[max(0, len(text)-20):])
	}
	frames := strings.Split(text, "\x1b[H")[1:]
	for _, frame := range frames {
		frame, _, _ = strings.Cut(frame, "\x1b[J")
		for line := range strings.SplitSeq(frame, "\x1b[K") {
			line = strings.Trim(line, "\r\n")
			if n := utf8.RuneCountInString(line); n > columns || strings.Contains(line, "\x1b") {
				t.Errorf("a line of %d columns: %q", n, line)
			}
		}
	}
	last := frames[len(frames)-1]
	for _, want := range []string{"bridgectl top", "LEDGER", "FORWARDED", "/s", "away", "failed: ask worker http://127.0.0.1:1", "failed: BRIDGE_AMQP_URL"} {
		if len(frames) != 3 || !strings.Contains(last, want) {
			t.Errorf("%d frames, %q is not in\n%s", len(frames), want, last)
		}
	}
}
