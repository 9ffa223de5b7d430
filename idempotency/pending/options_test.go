package pending_test

import (
	"database/sql"
	sqldriver "database/sql/driver"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

type noInbox struct{ driver.Inbox }

func TestMisuseIsRefusedByTheNameOfTheField(t *testing.T) {
	for _, c := range []struct {
		names string
		opts  pending.Options
	}{
		{"Options.EffectTimeout", pending.Options{HandBack: true, EffectTimeout: -1}},
		{"Options.EffectTimeout", pending.Options{HandBack: true, EffectTimeout: time.Hour}},
		{"Options.Poll", pending.Options{HandBack: true, Poll: -1}},
		{"Options.MaxStored", pending.Options{HandBack: true, MaxStored: -1}},
		{"Options.Retention", pending.Options{HandBack: true, Retention: time.Minute}},
		{"HandBack", pending.Options{}},
	} {
		if _, err := pending.New(noInbox{}, "shop", &c.opts); err == nil || !strings.Contains(err.Error(), c.names) {
			t.Errorf("%v, want an error that names %s", err, c.names)
		}
	}
	for names, opts := range map[string]pending.WorkerOptions{
		"WorkerOptions.Lease":     {HandBack: true, Lease: time.Millisecond},
		"WorkerOptions.Poll":      {HandBack: true, Poll: -1},
		"WorkerOptions.MaxStored": {HandBack: true, MaxStored: -1},
		"WorkerOptions.Attempts":  {HandBack: true, Attempts: -1},
		"WorkerOptions.Queues":    {},
	} {
		if _, err := pending.NewWorker(noInbox{}, "shop", &opts); err == nil || !strings.Contains(err.Error(), names) {
			t.Errorf("%v, want an error that names %s", err, names)
		}
	}
	if _, err := pending.New(nil, "shop", nil); err == nil || !strings.Contains(err.Error(), "inbox is nil") {
		t.Errorf("without an inbox: %v", err)
	}
}

// Only Work runs a handler in its transactions.
func TestTheTransactionsOfWorkHaveTheTxOptions(t *testing.T) {
	opts := quick
	opts.TxOptions = &sql.TxOptions{Isolation: sql.LevelSerializable}
	r := newWorker(t, opts)
	var serializable atomic.Int64
	r.Faults.OnBegin = func(opts sqldriver.TxOptions) {
		if opts.Isolation == sqldriver.IsolationLevel(sql.LevelSerializable) {
			serializable.Add(1)
		}
	}
	r.accept("m1")
	r.work(1, placeStored, "m1 is handled", nothing)
	if n := serializable.Load(); n != 1 {
		t.Errorf("%d transactions are serializable, want 1", n)
	}
}
