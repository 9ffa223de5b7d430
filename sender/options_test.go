package sender

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

type noLedger struct{ driver.Fence }

func (noLedger) Identity() uuid.UUID { return uuid.Nil }

func (noLedger) Features() driver.Features { return driver.Features{} }

func (noLedger) Record(context.Context, bridge.Tx, []driver.Entry) error { return nil }

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
