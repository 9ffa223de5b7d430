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

func TestNewRefusesMisuseAndNamesTheField(t *testing.T) {
	store := func(context.Context, amqp.Delivery, error) error { return nil }
	for _, c := range []struct {
		names    string
		inbox    driver.Inbox
		consumer string
		opts     *idempotency.Options
	}{
		{"inbox", nil, "shop", nil},
		{"consumer", noInbox{}, "", nil},
		{"consumer", noInbox{}, strings.Repeat("x", 256), nil},
		{"consumer", noInbox{}, "shop\x00", nil},
		{"Options.Attempts", noInbox{}, "shop", &idempotency.Options{Attempts: -1}},
		{"Options.MinDelay", noInbox{}, "shop", &idempotency.Options{MinDelay: -1}},
		{"Options.MaxDelay", noInbox{}, "shop", &idempotency.Options{MinDelay: time.Minute}},
		{"Options.Hold", noInbox{}, "shop", &idempotency.Options{Hold: -1}},
		{"Options.EffectTimeout", noInbox{}, "shop", &idempotency.Options{EffectTimeout: -1}},
		{"Options.EffectTimeout", noInbox{}, "shop", &idempotency.Options{EffectTimeout: time.Hour}},
		{"Options.Lease", noInbox{}, "shop", &idempotency.Options{Lease: time.Millisecond}},
		{"Options.Poll", noInbox{}, "shop", &idempotency.Options{Poll: -1}},
		{"Options.MaxStored", noInbox{}, "shop", &idempotency.Options{MaxStored: -1}},
		{"Options.Retention", noInbox{}, "shop", &idempotency.Options{Retention: time.Minute}},
		{"exclude each other", noInbox{}, "shop", &idempotency.Options{DeadLetterExchange: true, DeadLetter: store}},
		{"exclude each other", noInbox{}, "shop", &idempotency.Options{DeadLetterExchange: true, HandBack: true}},
		{"exclude each other", noInbox{}, "shop", &idempotency.Options{DeadLetter: store, HandBack: true}},
	} {
		if _, err := idempotency.New(c.inbox, c.consumer, c.opts); err == nil || !strings.Contains(err.Error(), c.names) {
			t.Errorf("got %v, want an error that names %s", err, c.names)
		}
	}
}

// Where a message goes that can never be handled is chosen by whoever knows the queue.
func TestWhatBecomesOfAPoisonMessageMustBeChosen(t *testing.T) {
	keeper := &faultyKeeper{}
	for name, make := range map[string]func(*idempotency.Options) error{
		"guard": func(opts *idempotency.Options) error {
			_, err := idempotency.New(noInbox{}, "shop", opts)
			return err
		},
		"latest": func(opts *idempotency.Options) error {
			_, err := idempotency.NewLatest(keeper, "shop", versionOf, opts)
			return err
		},
		"ordered": func(opts *idempotency.Options) error {
			if opts == nil {
				opts = new(idempotency.Options)
			}
			_, err := idempotency.NewOrdered(keeper, "shop", versionOf, &idempotency.OrderedOptions{Options: *opts})
			return err
		},
		"high water": func(opts *idempotency.Options) error {
			_, err := idempotency.NewHighWater(keeper, "shop", keyOf, opts)
			return err
		},
	} {
		for _, opts := range []*idempotency.Options{nil, {Attempts: 3}} {
			err := make(opts)
			for _, choice := range []string{"DeadLetterExchange", "DeadLetter,", "HandBack"} {
				if err == nil || !strings.Contains(err.Error(), choice) {
					t.Errorf("%s with %+v: %v, want an error that names %s", name, opts, err, choice)
				}
			}
		}
		if err := make(&idempotency.Options{HandBack: true}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
