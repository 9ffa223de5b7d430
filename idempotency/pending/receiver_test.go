package pending_test

import (
	"context"
	"database/sql"
	"testing"

	"go.uber.org/goleak"

	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A receiver is a service with Effects or a Worker.
type receiver struct {
	*receivertest.Receiver
	effects *pending.Effects
	worker  *pending.Worker
	rows    interface { // Effects or a Worker
		List(ctx context.Context, db *sql.DB, state pending.State, after string, limit int) ([]pending.Message, error)
		Count(ctx context.Context, db *sql.DB) (map[pending.State]int64, error)
		MarkDone(ctx context.Context, db *sql.DB, key string) error
		Retry(ctx context.Context, db *sql.DB, key string) error
		Stats() idempotency.Stats
	}
}

func newReceiver(t *testing.T, opts pending.Options) *receiver {
	t.Helper()
	r := &receiver{Receiver: receivertest.New(t)}
	opts.Logger = r.Logger()
	opts.HandBack = !opts.DeadLetterExchange && opts.DeadLetter == nil
	var err error
	r.effects, err = pending.New(r.Inbox, "shop", &opts)
	receivertest.Must(t, err)
	r.rows = r.effects
	return r
}

func newWorker(t *testing.T, opts pending.WorkerOptions) *receiver {
	t.Helper()
	r := &receiver{Receiver: receivertest.New(t)}
	r.addWorker(opts)
	r.rows = r.worker
	return r
}

func (r *receiver) addWorker(opts pending.WorkerOptions) {
	r.T.Helper()
	opts.Logger = r.Logger()
	opts.HandBack = !opts.DeadLetterExchange && opts.DeadLetter == nil
	var err error
	r.worker, err = pending.NewWorker(r.Inbox, "shop", &opts)
	receivertest.Must(r.T, err)
}

func (r *receiver) wantStats(want idempotency.Stats) {
	r.T.Helper()
	receivertest.WantStats(r.T, r.rows.Stats(), want)
}
