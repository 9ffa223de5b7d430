package idempotency_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
)

type noInbox struct{ driver.Inbox }

func TestMisuseIsRefusedByTheNameOfTheField(t *testing.T) {
	store := func(context.Context, amqp.Delivery, error) error { return nil }
	for _, c := range []struct {
		consumer, names string
		opts            idempotency.Options
	}{
		{"shop", "Options.Attempts", idempotency.Options{Attempts: -1}},
		{"shop", "Options.MinDelay", idempotency.Options{MinDelay: -1}},
		{"shop", "Options.MaxDelay", idempotency.Options{MinDelay: time.Hour}},
		{"shop", "Options.Hold", idempotency.Options{Hold: -1}},
		{"shop", "Options.Retention", idempotency.Options{Retention: time.Minute}},
		{"shop", "Options.TxOptions", idempotency.Options{HandBack: true, TxOptions: &sql.TxOptions{ReadOnly: true}}},
		{"shop", "exclude each other", idempotency.Options{DeadLetterExchange: true, DeadLetter: store}},
		{"shop", "exclude each other", idempotency.Options{DeadLetterExchange: true, HandBack: true}},
		{"shop", "exclude each other", idempotency.Options{DeadLetter: store, HandBack: true}},
		{"", "consumer name is empty", idempotency.Options{HandBack: true}},
		{strings.Repeat("x", 256), "consumer name is 256 bytes", idempotency.Options{HandBack: true}},
		{"shop\x00", "consumer name contains a NUL", idempotency.Options{HandBack: true}},
	} {
		if _, err := idempotency.New(noInbox{}, c.consumer, &c.opts); err == nil || !strings.Contains(err.Error(), c.names) {
			t.Errorf("%v, want an error that names %s", err, c.names)
		}
	}
	if _, err := idempotency.New(nil, "shop", nil); err == nil || !strings.Contains(err.Error(), "inbox is nil") {
		t.Errorf("without an inbox: %v", err)
	}
}

// The place of a message that can never be handled depends on the queue, so the caller must choose
// it.
func TestTheFateOfAPoisonMessageMustBeChosen(t *testing.T) {
	_, err := idempotency.New(noInbox{}, "shop", nil)
	for _, choice := range []string{"Queues,", "DeadLetterExchange", "DeadLetter,", "HandBack"} {
		if err == nil || !strings.Contains(err.Error(), choice) {
			t.Errorf("%v, want an error that names %s", err, choice)
		}
	}
}

// Where the caller begins the transactions, the options would have no effect.
func TestTheTransactionsOfHandleAndHandleBatchHaveTheTxOptions(t *testing.T) {
	r := newReceiver(t, idempotency.Options{TxOptions: &sql.TxOptions{Isolation: sql.LevelSerializable}})
	var mu sync.Mutex
	serializable := 0
	r.Faults.OnBegin = func(opts sqldriver.TxOptions) { // the purge has none
		mu.Lock()
		defer mu.Unlock()
		if opts.Isolation == sqldriver.IsolationLevel(sql.LevelSerializable) {
			serializable++
		}
	}
	r.handle(receivertest.PlaceOrder("m1"))
	batch := []amqp.Delivery{r.Delivery("m2"), r.Delivery("m3")}
	receivertest.Must(t, r.dedup.HandleBatch(t.Context(), r.DB, batch, func(context.Context, *sql.Tx, []amqp.Delivery) error { return nil }))
	if serializable != 2 {
		t.Errorf("%d transactions are serializable, want 2", serializable)
	}
	begin := func(context.Context) (idempotency.Transaction, error) { return nil, nil }
	for name, call := range map[string]func(){
		"HandleIn": func() {
			_ = idempotency.HandleIn(t.Context(), r.dedup, begin, r.Delivery("m4"), func(context.Context, idempotency.Transaction) error { return nil })
		},
		"HandleBatchIn": func() {
			_ = idempotency.HandleBatchIn(t.Context(), r.dedup, begin, batch, func(context.Context, idempotency.Transaction, []amqp.Delivery) error { return nil })
		},
		"HandleWithClaim": func() {
			_ = r.dedup.HandleWithClaim(t.Context(), r.Delivery("m4"), func(context.Context, idempotency.Claim) error { return nil })
		},
	} {
		func() {
			defer func() {
				if v := recover(); v == nil {
					t.Errorf("%s accepts Options.TxOptions", name)
				}
			}()
			call()
		}()
	}
}
