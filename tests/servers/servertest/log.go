package program

import (
	"bytes"
	"fmt"
	"sync"
)

// An Output is the output of a program so far. The zero value is ready.
type Output struct {
	mu      sync.Mutex
	text    bytes.Buffer
	written chan struct{} // closed by the next Write
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.written != nil {
		close(o.written)
		o.written = nil
	}
	return o.text.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// more returns a channel that the next Write closes.
func (o *Output) more() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.written == nil {
		o.written = make(chan struct{})
	}
	return o.written
}

// shownTail is the number of bytes of an output that a failed test logs.
const shownTail = 8 << 10

// end returns the end of the output, which explains a failure.
func (o *Output) end() string {
	text := o.String()
	if len(text) <= shownTail {
		return text
	}
	return fmt.Sprintf("(%d bytes before) ...%s", len(text)-shownTail, text[len(text)-shownTail:])
}
