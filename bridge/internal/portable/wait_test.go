package portable_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

func TestWaitIsRoundedUpAndKeepsTheDeadline(t *testing.T) {
	const none = time.Duration(0)
	for _, c := range []struct {
		wait, unit, deadline time.Duration
		want                 int64
	}{
		{150 * time.Millisecond, time.Millisecond, none, 150},
		{150 * time.Millisecond, time.Second, none, 1},
		{1001 * time.Millisecond, time.Second, none, 2},
		{2 * time.Second, time.Second, none, 2},
		{time.Microsecond, time.Millisecond, none, 1},
		{0, time.Second, none, 1},
		{-time.Second, time.Millisecond, none, 1},
		{time.Second, time.Millisecond, time.Minute, 1000},
		{20 * time.Second, time.Millisecond, 2 * time.Second, 1500},
		{20 * time.Second, time.Second, 2 * time.Second, 1},
		{20 * time.Second, time.Millisecond, 10 * time.Second, 9000},
		{20 * time.Second, time.Second, 100 * time.Millisecond, 1},
		{20 * time.Second, time.Millisecond, -time.Second, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			if c.deadline != none {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.deadline)
				defer cancel()
			}
			if got := portable.Wait(ctx, c.wait, c.unit); got != c.want {
				t.Errorf("%v in units of %v under a deadline of %v: %d, must be %d", c.wait, c.unit, c.deadline, got, c.want)
			}
		})
	}
}
