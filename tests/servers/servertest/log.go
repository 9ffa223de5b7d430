package servertest

import (
	"bytes"
	"strings"
	"sync"
)

// A Log is the output of a program or a logger, which can be read while it is written. The zero
// value is ready.
type Log struct {
	mu      sync.Mutex
	text    bytes.Buffer
	written chan struct{} // closed by the next Write
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.written != nil {
		close(l.written)
		l.written = nil
	}
	return l.text.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// With returns the lines that contain words.
func (l *Log) With(words string) (lines []string) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, words) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// More returns a channel that the next Write closes.
func (l *Log) More() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.written == nil {
		l.written = make(chan struct{})
	}
	return l.written
}
