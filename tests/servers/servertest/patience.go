package servertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// Patience bounds every wait of a test for an event that must happen. It only decides how late a
// failure is reported: a correct run must pass on a shared machine that is ten times slower.
const Patience = 3 * time.Minute

// A poll's pause is proportional to the duration of the last check, within these bounds, since most
// checks cost a server work.
const (
	shortestPause = 10 * time.Millisecond
	longestPause  = 500 * time.Millisecond
	pausePerLook  = 4
)

// Eventually polls until holds returns true, for a state that no server signals. After Patience it
// fails the test with the description and, if now is given, the current state. It may be used in a
// cleanup.
func Eventually(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, what string, holds func() bool, now ...func() string) {
	t.Helper()
	// The test's context would end before its cleanups.
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

// Next returns the next value of a channel, or the zero value if it is closed. After Patience it
// fails the test with the description. Call it in the test's own goroutine.
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

// Await polls until holds returns true without an error, until ctx ends or Patience is over. The
// error then contains the description and the last error of holds.
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
