package pending_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A receiver is a service with a guard.
type receiver struct {
	*receivertest.Receiver
	guard *pending.Guard
}

func newReceiver(t *testing.T, opts pending.Options) *receiver {
	t.Helper()
	r := &receiver{Receiver: receivertest.New(t)}
	opts.Logger = r.Logger()
	r.guard = r.newGuard("shop", opts)
	return r
}

func (r *receiver) newGuard(consumer string, opts pending.Options) *pending.Guard {
	r.T.Helper()
	opts.HandBack = !opts.DeadLetterExchange && opts.DeadLetter == nil
	guard, err := pending.New(r.Inbox, consumer, &opts)
	receivertest.Must(r.T, err)
	return guard
}

func (r *receiver) wantStats(want idempotency.Stats) {
	r.T.Helper()
	receivertest.WantStats(r.T, r.guard.Stats(), want)
}
