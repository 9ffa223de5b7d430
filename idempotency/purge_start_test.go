package idempotency_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
)

// Keys contain no time, most are new, and the old ones are anywhere among them. Each process ends
// after one step of the purge; together they reach all old keys.
func TestProcessesThatAreRestartedOftenForgetOldKeys(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, idempotency.Options{Retention: 10 * day})
	const keys, restarts, messages = 2000, 8, 200
	key := func(n int) string { return fmt.Sprintf("order %04d", n) }
	for n := range keys {
		age := 20 * day
		if n < keys/2 {
			age = day
		}
		r.claimed(key(n), age)
	}
	for run := range restarts {
		dedup := r.newDedup("shop", idempotency.Options{Retention: 10 * day,
			Key: func(d amqp.Delivery) (string, error) { return string(d.Body), nil }})
		for n := range messages {
			d := r.Delivery("m")
			d.Body = fmt.Appendf(nil, "%s, line %d", key(run*keys/restarts), n) // like random keys, spread over all
			receivertest.Must(t, dedup.Handle(t.Context(), r.DB, d, func(context.Context, *sql.Tx) error { return nil }))
		}
	}
	if left := r.Keys(); left != keys/2+restarts*messages {
		t.Errorf("%d old keys are left", left-keys/2-restarts*messages)
	}
}

// Growing keys begin with the old ones, so even a short-lived process finds these.
func TestAProcessThatIsRestartedOftenFindsOldKeysWhereKeysGrow(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]func(age time.Duration, n uint32) string{
		"UUIDs": uuidFrom,
		"numbers": func(age time.Duration, n uint32) string {
			return fmt.Sprintf("order %09d", int(1000-age/day)*1000+int(n))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReceiver(t, idempotency.Options{Retention: 10 * day})
			const old, messages = 300, 200
			for n := range uint32(old) {
				r.claimed(key(20*day, n), 20*day)
			}
			for n := range uint32(messages) {
				receivertest.Must(t, r.dedup.Handle(t.Context(), r.DB, r.Delivery(key(0, n)), func(context.Context, *sql.Tx) error { return nil }))
			}
			if left := r.Keys(); left != messages {
				t.Errorf("%d old keys are left", left-messages)
			}
		})
	}
}
