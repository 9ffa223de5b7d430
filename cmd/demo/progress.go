package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// A display writes lines about the run. Its methods may be called concurrently.
type display struct {
	out    io.Writer
	orders int
	began  time.Time

	mu   sync.Mutex
	next time.Time // of progress's next line
}

// lineEvery is the least time between two lines of progress.
const lineEvery = 2 * time.Second

func newDisplay(out io.Writer, orders int) *display {
	return &display{out: out, orders: orders, began: time.Now()}
}

func (d *display) event(format string, values ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.line(format, values...)
}

func (d *display) progress(c counts) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Now().Before(d.next) {
		return
	}
	d.next = time.Now().Add(lineEvery)
	d.line("%s of %s orders placed, %s committed, %s e-mails received", number(c.Attempted), number(d.orders), number(c.Committed), number(c.Received))
}

// line writes a line that begins with the time since the start.
func (d *display) line(format string, values ...any) {
	fmt.Fprintf(d.out, "%5.1f s  "+format+"\n", append([]any{time.Since(d.began).Seconds()}, values...)...)
}
