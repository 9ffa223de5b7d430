package idempotency_test

import (
	"context"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency"
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
