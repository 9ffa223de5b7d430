package tables

import (
	"context"
	"time"
)

// longestMargin is kept of a context's deadline at most.
const longestMargin = time.Second

// Wait returns for how many units the server may wait: wait, rounded up, but no
// longer than to somewhat before ctx's deadline, as a deadline that passes while
// the server waits costs the connection. It is one unit at least.
func Wait(ctx context.Context, wait, unit time.Duration) int64 {
	n := (max(wait, 0) + unit - 1) / unit
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		left -= min(left/4, longestMargin)
		n = min(n, left/unit)
	}
	return int64(max(1, n))
}
