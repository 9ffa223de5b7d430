package portable

import (
	"context"
	"sync/atomic"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A Flush makes the commits of others durable, by the commit of a write of the bridge's own. The
// server's log is sequential, and that commit waits until the log, with all earlier commits in it,
// is where the server's settings require it.
type Flush struct {
	begun     atomic.Int64    // number of writes
	writing   chan struct{}   // holds an element during a write
	committed int64           // number of the last write that has committed; belongs to the caller that is writing
	instance  driver.Instance // instance of that write; belongs to the same caller
}

// NewFlush returns a Flush.
func NewFlush() *Flush { return &Flush{writing: make(chan struct{}, 1)} }

// Run returns once a write has committed that began after the call, with the instance that the
// write returns. All callers during one write share the next one. If the context of the writing
// caller ends during its write, that write counts for no caller.
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
		// The driver may have cancelled the wait. PostgreSQL ends it with a warning and no error.
		err = context.Cause(ctx)
	}
	if err != nil {
		return "", err
	}
	f.committed, f.instance = n, instance
	return instance, nil
}
