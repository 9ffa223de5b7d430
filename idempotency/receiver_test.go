package idempotency_test

import (
	"context"
	"database/sql"
	"testing"

	"go.uber.org/goleak"

	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A receiver is a service with a guard.
type receiver struct {
	*receivertest.Receiver
	guard *idempotency.Guard
}

func newReceiver(t *testing.T, opts idempotency.Options) *receiver {
	t.Helper()
	r := &receiver{Receiver: receivertest.New(t)}
	opts.Logger = r.Logger()
	r.guard = r.newGuard("shop", opts)
	return r
}

func (r *receiver) newGuard(consumer string, opts idempotency.Options) *idempotency.Guard {
	r.T.Helper()
	opts.HandBack = !opts.DeadLetterExchange && opts.DeadLetter == nil
	guard, err := idempotency.New(r.Inbox, consumer, &opts)
	receivertest.Must(r.T, err)
	return guard
}

// handle handles a delivery of m1, which must come to its end.
func (r *receiver) handle(fn func(context.Context, *sql.Tx) error) {
	r.T.Helper()
	receivertest.Must(r.T, r.guard.Handle(r.T.Context(), r.DB, r.Delivery("m1"), fn))
}

func (r *receiver) wantStats(want idempotency.Stats) {
	r.T.Helper()
	receivertest.WantStats(r.T, r.guard.Stats(), want)
}
