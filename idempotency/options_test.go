package idempotency_test

import (
	"context"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
)

type noInbox struct{ bridge.Inbox }

func TestNewRefusesMisuseAndNamesTheField(t *testing.T) {
	store := func(context.Context, amqp.Delivery, error) error { return nil }
	for _, c := range []struct {
		names    string
		inbox    bridge.Inbox
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
		{"Options.DeadLetter ", noInbox{}, "shop", &idempotency.Options{DeadLetterExchange: true, DeadLetter: store}},
	} {
		if _, err := idempotency.New(c.inbox, c.consumer, c.opts); err == nil || !strings.Contains(err.Error(), c.names) {
			t.Errorf("got %v, want an error that names %s", err, c.names)
		}
	}
}

func TestNewNeedsNoOptions(t *testing.T) {
	if _, err := idempotency.New(noInbox{}, "shop", nil); err != nil {
		t.Error(err)
	}
}
