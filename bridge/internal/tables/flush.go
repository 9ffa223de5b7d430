package tables

import (
	"context"
	"sync/atomic"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A Flush makes durable what others have committed, by the commit of a write of our own: the
// server's log is sequential, and that commit waits until the log, with all earlier commits in it,
// is where the server's settings want it.
type Flush struct {
	begun     atomic.Int64    // writes
	writing   chan struct{}   // holds an element during a write
	committed int64           // the last write that has committed; belongs to the caller that is writing
	instance  driver.Instance // where that was; likewise
}

// NewFlush returns a Flush.
func NewFlush() *Flush { return &Flush{writing: make(chan struct{}, 1)} }

// Run returns once a write has committed that began after the call, with the instance that the
// write names. All who call during one write share the next one. A write during which its caller's
// context ends counts for no caller.
func (f *Flush) Run(ctx context.Context, write func() (driver.Instance, error)) (driver.Instance, error) {
	before := f.begun.Load()
	select {
	case f.writing <- struct{}{}:
		defer func() { <-f.writing }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if f.committed > before {
		return f.instance, nil
	}
	n := f.begun.Add(1)
	instance, err := write()
	if err == nil && ctx.Err() != nil {
		// The driver may have cancelled the wait, which PostgreSQL ends with a warning and no error.
		err = context.Cause(ctx)
	}
	if err != nil {
		return "", err
	}
	f.committed, f.instance = n, instance
	return instance, nil
}
