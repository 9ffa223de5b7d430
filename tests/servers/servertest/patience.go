package servertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// Patience bounds every wait of a test for something that must happen. It only says
// how late a failure is told: a correct run must pass on a machine that is shared and
// ten times slower.
const Patience = 3 * time.Minute

// A pause between two looks at what no server signals is in proportion to what a look
// takes, which is a server's work in most cases, and within these bounds.
const (
	shortestPause = 10 * time.Millisecond
	longestPause  = 500 * time.Millisecond
	pausePerLook  = 4
)

// Eventually waits until holds says so, for what no server signals. After Patience it
// fails the test with what it has waited for, and how things are now, where that is
// given. It may be used in a cleanup.
func Eventually(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, what string, holds func() bool, now ...func() string) {
	t.Helper()
	// Not the test's context, which ends before its cleanups.
	err := Await(context.Background(), what, func() (bool, error) { return holds(), nil })
	if err == nil {
		return
	}
	text := err.Error()
	for _, now := range now {
		text += "; now: " + now()
	}
	t.Fatalf("%s", text)
}

// Next returns what a channel gives next, or its zero if it is closed. After Patience it fails
// the test with what it has waited for. It must be called by the test's own goroutine.
func Next[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case next := <-c:
		return next
	case <-time.After(Patience):
		t.Fatalf("not in time: %s", what)
		panic("unreachable")
	}
}

// Await waits until holds says so without an error, until ctx ends or Patience does.
// The error then says what was waited for, and the last error of holds.
func Await(ctx context.Context, what string, holds func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for {
		start := time.Now()
		ok, err := holds()
		if ok && err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("not in time: %s: %w", what, context.Cause(ctx)), err)
		case <-time.After(min(max(shortestPause, pausePerLook*time.Since(start)), longestPause)):
		}
	}
}
