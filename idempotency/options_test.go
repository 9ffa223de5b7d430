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

// makers make what takes Options, with those that are no other argument's.
var makers = map[string]func(idempotency.Options) error{
	"guard": func(opts idempotency.Options) error {
		_, err := idempotency.New(noInbox{}, "shop", &opts)
		return err
	},
	"latest": func(opts idempotency.Options) error {
		_, err := idempotency.NewLatest(noInbox{}, "shop", versionOf, &opts)
		return err
	},
	"ordered": func(opts idempotency.Options) error {
		_, err := idempotency.NewOrdered(noInbox{}, "shop", versionOf, &idempotency.OrderedOptions{Options: opts})
		return err
	},
	"high water": func(opts idempotency.Options) error {
		_, err := idempotency.NewHighWater(noInbox{}, "shop", keyOf, &opts)
		return err
	},
}

func TestMisuseIsRefusedByTheNameOfTheField(t *testing.T) {
	store := func(context.Context, amqp.Delivery, error) error { return nil }
	for _, c := range []struct {
		of, names string
		opts      idempotency.Options
	}{
		{"guard", "Options.Attempts", idempotency.Options{Attempts: -1}},
		{"guard", "Options.MinDelay", idempotency.Options{MinDelay: -1}},
		{"guard", "Options.MaxDelay", idempotency.Options{MinDelay: time.Hour}},
		{"latest", "Options.Hold", idempotency.Options{Hold: -1}},
		{"guard", "Options.EffectTimeout", idempotency.Options{EffectTimeout: -1}},
		{"guard", "Options.EffectTimeout", idempotency.Options{EffectTimeout: time.Hour}},
		{"guard", "Options.Lease", idempotency.Options{Lease: time.Millisecond}},
		{"guard", "Options.Poll", idempotency.Options{Poll: -1}},
		{"guard", "Options.MaxStored", idempotency.Options{MaxStored: -1}},
		{"guard", "Options.Retention", idempotency.Options{Retention: time.Minute}},
		{"guard", "exclude each other", idempotency.Options{DeadLetterExchange: true, DeadLetter: store}},
		{"guard", "exclude each other", idempotency.Options{DeadLetterExchange: true, HandBack: true}},
		{"guard", "exclude each other", idempotency.Options{DeadLetter: store, HandBack: true}},
		{"high water", "Options.Key ", idempotency.Options{Key: func(amqp.Delivery) (string, error) { return "", nil }}},
		{"latest", "Options.Retention ", idempotency.Options{Retention: time.Hour}},
	} {
		if err := makers[c.of](c.opts); err == nil || !strings.Contains(err.Error(), c.names) {
			t.Errorf("%s: %v, want an error that names %s", c.of, err, c.names)
		}
	}

	keeper, negative := noInbox{}, int64(-1)
	for _, c := range []struct {
		names    string
		consumer string
		versions idempotency.VersionFunc
		opts     idempotency.OrderedOptions
	}{
		{"consumer name is empty", "", versionOf, idempotency.OrderedOptions{}},
		{"consumer name is 256 bytes", strings.Repeat("x", 256), versionOf, idempotency.OrderedOptions{}},
		{"consumer name contains a NUL", "shop\x00", versionOf, idempotency.OrderedOptions{}},
		{"versionOf is nil", "shop", nil, idempotency.OrderedOptions{}},
		{"OrderedOptions.Start", "shop", versionOf, idempotency.OrderedOptions{Start: &negative}},
		{"OrderedOptions.MaxKept ", "shop", versionOf, idempotency.OrderedOptions{MaxKept: -1}},
		{"OrderedOptions.MaxKeptBytes", "shop", versionOf, idempotency.OrderedOptions{MaxKeptBytes: -1}},
		{"OrderedOptions.GapAge", "shop", versionOf, idempotency.OrderedOptions{GapAge: -1}},
	} {
		if _, err := idempotency.NewOrdered(keeper, c.consumer, c.versions, &c.opts); err == nil || !strings.Contains(err.Error(), c.names) {
			t.Errorf("got %v, want an error that names %s", err, c.names)
		}
	}

	_, noKeys := idempotency.NewHighWater(keeper, "shop", nil, nil)
	_, noVersions := idempotency.NewLatest(keeper, "shop", nil, nil)
	_, noStore := idempotency.New(nil, "shop", nil)
	_, noChoice := idempotency.New(noInbox{}, "shop", nil)
	for names, err := range map[string]error{"keyOf is nil": noKeys, "versionOf is nil": noVersions, "inbox is nil": noStore, "HandBack": noChoice} {
		if err == nil || !strings.Contains(err.Error(), names) {
			t.Errorf("got %v, want an error that names %s", err, names)
		}
	}
}

// Where a message goes that can never be handled is chosen by whoever knows the queue.
func TestWhatBecomesOfAPoisonMessageMustBeChosen(t *testing.T) {
	for name, make := range makers {
		err := make(idempotency.Options{Attempts: 3})
		for _, choice := range []string{"DeadLetterExchange", "DeadLetter,", "HandBack"} {
			if err == nil || !strings.Contains(err.Error(), choice) {
				t.Errorf("%s: %v, want an error that names %s", name, err, choice)
			}
		}
		must(t, make(idempotency.Options{HandBack: true}))
	}
}
