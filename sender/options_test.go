package sender

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

type noLedger struct{}

func (noLedger) Identity() uuid.UUID { return uuid.Nil }

func (noLedger) Features() driver.Features { return driver.Features{} }

func (noLedger) Record(context.Context, bridge.Tx, []uuid.UUID) error { return nil }

func (noLedger) Park(context.Context, bridge.Tx, []driver.Parked) error { return errors.ErrUnsupported }

func TestAWrongSenderIsRefusedByTheFieldsName(t *testing.T) {
	broker := new(bridge.Broker)
	for want, test := range map[string]struct {
		ledger driver.Recorder
		broker *bridge.Broker
		opts   *Options
	}{
		"ledger is nil":   {nil, broker, nil},
		"broker is nil":   {noLedger{}, nil, nil},
		"Queue":           {noLedger{}, broker, &Options{Queue: strings.Repeat("q", 201)}},
		"Timeout":         {noLedger{}, broker, &Options{Timeout: -1}},
		"MaxMessageBytes": {noLedger{}, broker, &Options{MaxMessageBytes: -1}},
		"Parking":         {noLedger{}, broker, &Options{Parking: 3}},
		"ParkAfter":       {noLedger{}, broker, &Options{ParkAfter: -1}},
		"cannot keep":     {noLedger{}, broker, &Options{Parking: ParkOnOutage}},
		"GroupMessages":   {noLedger{}, broker, &Options{GroupMessages: 1001}},
	} {
		if _, err := New(test.ledger, test.broker, test.opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestDefaultsAreThoseOfTheirComments(t *testing.T) {
	want := Options{Queue: "twoqueue", Timeout: 5 * time.Second, MaxMessageBytes: 16 << 20, GroupMessages: 1000, ParkAfter: time.Second, Logger: slog.Default()}
	for _, opts := range []*Options{nil, {}} {
		s, err := New(noLedger{}, new(bridge.Broker), opts)
		if err != nil {
			t.Fatal(err)
		}
		if s.opts != want {
			t.Errorf("options %+v, want %+v", s.opts, want)
		}
	}
	own := Options{Queue: "q", Timeout: time.Second, MaxMessageBytes: 1, GroupMessages: 1,
		Parking: ParkNever, ParkAfter: time.Minute, Logger: slog.New(slog.DiscardHandler)}
	if s, err := New(noLedger{}, new(bridge.Broker), &own); err != nil || s.opts != own {
		t.Errorf("options %+v, want %+v (%v)", s.opts, own, err)
	}
}
