package idempotency

import (
	"context"
	"time"

	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// Attempt returns the number of the handler's attempt at its message, from 1 on, and whether it is
// the last one: if it fails, the message is dead-lettered. ctx is the handler's context. Attempts
// that do not count (see 'Failed attempts' in the package comment) do not raise the number. In a
// function for Options.DeadLetter it is the number of failed attempts. With any other context it is
// 0.
func Attempt(ctx context.Context) (number int, last bool) { return engine.Attempt(ctx) }

// RetryLater marks the error of an attempt that failed for a cause outside of the message: for
// example, a service that the handler needs is unavailable. The attempt does not count. The next
// one begins after a pause of this length; 0 means a pause that grows with each such attempt, to 10
// seconds or Options.MaxDelay if that is less. With Options.Queues the message waits in the first
// retry queue whose delay is at least this long, or else in the slowest; with 0, in a slower one
// each time. In place, the delivery is held meanwhile, so the pause ends with Options.Hold, and the
// message is handed back. An effect of package pending returns pending.NotDone(RetryLater(err,
// after)). In Work and Resume of that package 0 means the longest of these pauses from the start.
func RetryLater(err error, after time.Duration) error { return engine.RetryLater(err, after) }
