package sender

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

type noLedger struct{ driver.Fence }

func (noLedger) Identity() uuid.UUID { return uuid.Nil }

func (noLedger) Features() driver.Features { return driver.Features{} }

func (noLedger) Record(context.Context, bridge.Tx, []driver.Entry) error { return nil }

func (noLedger) Cancel(context.Context, bridge.Tx, uuid.UUID) (bool, error) { return false, nil }

func TestAWrongSenderIsRefusedByTheFieldsName(t *testing.T) {
	broker := new(bridge.Broker)
	for want, test := range map[string]struct {
		ledger driver.Recorder
		broker Broker
		opts   *Options
	}{
		"ledger is nil":      {nil, broker, nil},
		"broker is nil":      {new(carryingLedger), nil, &Options{Carry: CarryAlways}},
		"broker is nil ":     {noLedger{}, (*bridge.Broker)(nil), nil},
		"Queue":              {noLedger{}, broker, &Options{Queue: strings.Repeat("q", 201)}},
		"Timeout":            {noLedger{}, broker, &Options{Timeout: -1}},
		"MaxMessageBytes":    {noLedger{}, broker, &Options{MaxMessageBytes: -1}},
		"GroupMessages":      {noLedger{}, broker, &Options{GroupMessages: 1001}},
		"none of CarrySmall": {noLedger{}, broker, &Options{Carry: 4}},
		"CarryBytes":         {noLedger{}, broker, &Options{CarryBytes: -1}},
		"CarryPendingBytes":  {noLedger{}, broker, &Options{CarryPendingBytes: -1}},
		"cannot carry":       {noLedger{}, broker, &Options{Carry: CarryAlways}},
		"tables of its own":  {noLedger{}, broker, &Options{Carry: CarryOnOutage}},
		"OrderedShards":      {noLedger{}, broker, &Options{OrderedShards: -1}},
	} {
		if _, err := New(test.ledger, test.broker, test.opts); err == nil || !strings.Contains(err.Error(), strings.TrimSpace(want)) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// A message whose delay cannot be kept is refused before anything is touched, with the reason.
func TestADelayThatCannotBeKeptIsRefused(t *testing.T) {
	hour := time.Now().Add(time.Hour)
	for reason, test := range map[string]struct {
		ledger  driver.Recorder
		message bridge.Message
	}{
		"later messages of the key would overtake it": {new(carryingLedger), bridge.Message{OrderKey: "a", NotBefore: hour}},
		"is after the year 9999":                      {new(carryingLedger), bridge.Message{NotBefore: time.Date(10_000, 1, 1, 0, 0, 0, -1, time.UTC)}},
		"use a ledger with tables of its own":         {noLedger{}, bridge.Message{NotBefore: hour}},
	} {
		s, err := New(test.ledger, new(bridge.Broker), &Options{OrderedShards: 2})
		if err != nil {
			t.Fatal(err)
		}
		test.message.RoutingKey = "target"
		_, err = s.SendTx(t.Context(), nil, test.message)
		if !errors.Is(err, bridge.ErrInvalidMessage) || !strings.Contains(err.Error(), "field NotBefore") || !strings.Contains(err.Error(), reason) {
			t.Errorf("%v, must say: %s", err, reason)
		}
	}
}
