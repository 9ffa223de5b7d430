package main

import (
	"fmt"
	"io"
	"os"

	"github.com/dustin/go-humanize"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// progressFrom is the number of things from which on a bar is worth its line.
const progressFrom = 50

// A progress is a bar on a terminal, and nothing elsewhere.
type progress struct {
	container *mpb.Progress
	bar       *mpb.Bar
}

func newProgress(w io.Writer, what string, total int) *progress {
	if total < progressFrom || !isTerminal(w) || os.Getenv("TERM") == "dumb" {
		return &progress{}
	}
	p := &progress{container: mpb.New(mpb.WithOutput(w), mpb.WithWidth(40))}
	p.bar = p.container.AddBar(int64(total),
		mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(what, decor.WC{W: len(what) + 1, C: decor.DindentRight})),
		mpb.AppendDecorators(decor.Any(func(s decor.Statistics) string {
			return fmt.Sprintf("%s of %s", humanize.Comma(s.Current), humanize.Comma(s.Total))
		})))
	return p
}

func (p *progress) add(n int) {
	if p.bar != nil {
		p.bar.IncrBy(n)
	}
}

func (p *progress) close() {
	if p.bar != nil {
		p.bar.Abort(true)
		p.container.Wait()
	}
}
