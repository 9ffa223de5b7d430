package portable

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A write makes the commits durable that were seen before it began. A commit seen during the write
// may have come too late for it.
func TestOnlyAWriteThatBeginsAfterTheCallMakesDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, writes := NewFlush(), make(chan error)
		begun := 0
		var calls sync.WaitGroup
		answers := make(chan error, 10)
		call := func(ctx context.Context) {
			calls.Go(func() {
				_, err := f.Run(ctx, func() (driver.Instance, error) { begun++; return "", <-writes })
				answers <- err
			})
			synctest.Wait()
		}
		want := func(what string, writesBegun int, want ...error) {
			t.Helper()
			synctest.Wait()
			if begun != writesBegun || len(answers) != len(want) {
				t.Fatalf("%s: %d writes have begun and %d calls have returned, must be %d and %d", what, begun, len(answers), writesBegun, len(want))
			}
			for _, err := range want {
				if got := <-answers; !errors.Is(got, err) {
					t.Errorf("%s: the answer is %v, must be %v", what, got, err)
				}
			}
		}
		broken := errors.New("broken")
		gone, leave := context.WithCancel(t.Context())
		call(t.Context())
		call(t.Context())
		call(t.Context())
		call(gone)
		want("during the first write", 1)
		leave()
		want("a caller that gives up waits no longer", 1, context.Canceled)
		writes <- nil
		want("the second write has begun", 2, nil)
		writes <- broken
		want("a failed write answers its own caller", 3, broken)
		call(t.Context())
		call(t.Context())
		writes <- nil
		want("calls that came during a write need another", 4, nil)
		writes <- nil
		want("and share it", 4, nil, nil)
		calls.Wait()
	})
}

// The write has the caller's context: when it ends, a driver cancels a commit that waits for its
// standby, and PostgreSQL then reports a commit. The standby may lack it.
func TestAWriteWhoseContextEndsMakesNothingDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, first, second := NewFlush(), make(chan struct{}), make(chan struct{})
		writes := 0
		answers := make(chan error, 3)
		call := func(ctx context.Context, until chan struct{}) {
			go func() {
				_, err := f.Run(ctx, func() (driver.Instance, error) {
					writes++
					<-until
					return "", nil
				})
				answers <- err
			}()
			synctest.Wait()
		}
		gone, leave := context.WithCancel(t.Context())
		call(t.Context(), first)
		call(gone, second)        // this one writes next
		call(t.Context(), second) // and this one shares that write
		close(first)
		synctest.Wait()
		leave()
		close(second)
		synctest.Wait()
		if err := <-answers; err != nil {
			t.Errorf("the first call: %v, must succeed", err)
		}
		if err := <-answers; !errors.Is(err, context.Canceled) {
			t.Errorf("the call whose context has ended during its write: %v, must be context.Canceled", err)
		}
		if err := <-answers; err != nil || writes != 3 {
			t.Errorf("the call that has waited: %v after %d writes, must succeed by a third", err, writes)
		}
	})
}
