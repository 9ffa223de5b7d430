package ledgertest

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
)

func check(t *testing.T, err error, doing string) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", doing, err)
	}
}

// expectDenied fails unless err is the error of a denied verb.
func expectDenied(t *testing.T, verb string, err error) {
	t.Helper()
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("%s: %v, must be %v", verb, err, errors.ErrUnsupported)
	}
}

// eventually polls a state for which there is no signal.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	eventuallySaying(t, time.Millisecond, func() string { return "still not true: " + what }, holds)
}

// eventuallySaying is eventually with a pause between two looks; its failure reports how.
func eventuallySaying(t *testing.T, pause time.Duration, how func() string, holds func() bool) {
	t.Helper()
	limit := time.After(wait)
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("after %v %s", wait, how())
		}
	}
}

// A reply holds the results of a call.
type reply[R any] struct {
	value R
	err   error
}

// beside calls do in a goroutine.
func beside[R any](do func() (R, error)) <-chan reply[R] {
	done := make(chan reply[R], 1)
	go func() {
		value, err := do()
		done <- reply[R]{value, err}
	}()
	return done
}

// next waits for the return of a call. A call that never returns fails the test.
func next[R any](t *testing.T, doing string, done <-chan reply[R]) (R, error) {
	t.Helper()
	select {
	case r := <-done:
		return r.value, r.err
	case <-time.After(wait + prompt): // the call's own bound is wait, if it has one
		t.Fatalf("%s does not return", doing)
		panic("unreachable")
	}
}

// bounded returns t's context with a limit, for calls that must not wait: a waiting call fails.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	t.Cleanup(cancel)
	return ctx
}

// begin begins a transaction that is rolled back at the end of t, unless it has ended before.
func begin(t *testing.T, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	check(t, err, "begin")
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func newIDs(n int) []uuid.UUID {
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = uuid.Must(uuid.NewV7())
	}
	return ids
}

func newID() uuid.UUID { return newIDs(1)[0] }

func contains(ids []uuid.UUID, id uuid.UUID) bool { return slices.Contains(ids, id) }

func scalar(t *testing.T, db *sql.DB, query string) string {
	t.Helper()
	var value string
	check(t, db.QueryRowContext(t.Context(), query).Scan(&value), "query")
	return value
}
