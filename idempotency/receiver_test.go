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

// A receiver is a service with a Deduplicator.
type receiver struct {
	*receivertest.Receiver
	dedup *idempotency.Deduplicator
}

func newReceiver(t *testing.T, opts idempotency.Options) *receiver {
	t.Helper()
	r := &receiver{Receiver: receivertest.New(t)}
	opts.Logger = r.Logger()
	r.dedup = r.newDedup("shop", opts)
	return r
}

func (r *receiver) newDedup(consumer string, opts idempotency.Options) *idempotency.Deduplicator {
	r.T.Helper()
	opts.HandBack = !opts.DeadLetterExchange && opts.DeadLetter == nil && opts.Queues == nil
	dedup, err := idempotency.New(r.Inbox, consumer, &opts)
	receivertest.Must(r.T, err)
	return dedup
}

// handle handles a delivery of m1, which must come to its end.
func (r *receiver) handle(fn func(context.Context, *sql.Tx) error) {
	r.T.Helper()
	receivertest.Must(r.T, r.dedup.Handle(r.T.Context(), r.DB, r.Delivery("m1"), fn))
}

func (r *receiver) wantStats(want idempotency.Stats) {
	r.T.Helper()
	receivertest.WantStats(r.T, r.dedup.Stats(), want)
}
