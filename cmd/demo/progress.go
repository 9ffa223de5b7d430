package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/mattn/go-isatty"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// A display shows what happens. Its methods may be called concurrently.
type display interface {
	event(format string, values ...any)
	progress(counts)
	close() // no more will come
}

// newDisplay shows bars on a terminal and lines elsewhere.
func newDisplay(out io.Writer, orders int) display {
	if file, ok := out.(*os.File); ok && isatty.IsTerminal(file.Fd()) && os.Getenv("TERM") != "dumb" {
		return newBars(out, orders)
	}
	return &lines{out: out, orders: orders, began: time.Now()}
}

// stamp is how far into the play something happened.
func stamp(began time.Time) string {
	return fmt.Sprintf("%5.1f s  ", time.Since(began).Seconds())
}

// bars are live bars at the bottom; events scroll above them.
type bars struct {
	container *mpb.Progress
	began     time.Time
	attempted *mpb.Bar
	received  *mpb.Bar
}

func newBars(out io.Writer, orders int) *bars {
	b := &bars{container: mpb.New(mpb.WithOutput(out), mpb.WithWidth(40)), began: time.Now()}
	add := func(name, unit string, total int64) *mpb.Bar {
		return b.container.AddBar(total,
			mpb.PrependDecorators(decor.Name(name, decor.WC{W: 15, C: decor.DindentRight})),
			mpb.AppendDecorators(decor.Any(func(s decor.Statistics) string {
				return fmt.Sprintf("%s of %s %s", humanize.Comma(s.Current), humanize.Comma(s.Total), unit)
			})))
	}
	b.attempted = add("orders placed", "planned", int64(orders))
	b.received = add("e-mails sent", "committed", 0)
	return b
}

func (b *bars) event(format string, values ...any) {
	fmt.Fprintf(b.container, stamp(b.began)+format+"\n", values...)
}

func (b *bars) progress(c counts) {
	b.attempted.SetCurrent(int64(c.Attempted))
	b.received.SetTotal(int64(c.Committed), false)
	b.received.SetCurrent(int64(c.Received))
}

func (b *bars) close() {
	b.attempted.Abort(false) // ends the bar where it is
	b.received.Abort(false)
	b.container.Wait()
}

// lines are for a file or a pipe.
type lines struct {
	out    io.Writer
	orders int
	began  time.Time

	mu   sync.Mutex
	next time.Time
}

const lineEvery = 2 * time.Second

func (l *lines) event(format string, values ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.out, stamp(l.began)+format+"\n", values...)
}

func (l *lines) progress(c counts) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Now().Before(l.next) {
		return
	}
	l.next = time.Now().Add(lineEvery)
	fmt.Fprintf(l.out, "%s%s of %s orders placed, %s committed, %s e-mails received\n", stamp(l.began),
		humanize.Comma(int64(c.Attempted)), humanize.Comma(int64(l.orders)),
		humanize.Comma(int64(c.Committed)), humanize.Comma(int64(c.Received)))
}

func (l *lines) close() {}
