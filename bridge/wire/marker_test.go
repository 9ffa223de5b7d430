package wire_test

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

func TestAMarkerIsReadAsItWasWritten(t *testing.T) {
	want := wire.Marker{Ledger: uuid.New(), Look: time.Now().UTC().Truncate(time.Microsecond)}
	p := want.Publishing()
	if p.DeliveryMode != amqp.Persistent {
		t.Error("it is transient")
	}
	d := amqp.Delivery{Headers: p.Headers, MessageId: p.MessageId}
	if !wire.IsMarker(d) {
		t.Error("it does not look like one")
	}
	if got, err := wire.ReadMarker(d); err != nil || got != want {
		t.Errorf("read %+v, %v; want %+v", got, err, want)
	}
	if _, err := wire.Parse(d); !errors.Is(err, bridge.ErrMalformed) {
		t.Errorf("a marker is parsed as a message: %v", err)
	}
}

func TestAMessageIsNoMarker(t *testing.T) {
	p, err := wire.Encode(bridge.Message{ID: uuid.New(), RoutingKey: "target"}, uuid.New())
	if err != nil {
		t.Fatal(err)
	}
	if wire.IsMarker(amqp.Delivery{Headers: p.Headers}) {
		t.Error("it looks like one")
	}
}

func TestAMalformedMarkerIsNotRead(t *testing.T) {
	for name, wrong := range map[string]amqp.Table{
		"unknown format": {wire.HeaderMarker: "2"},
		"format no text": {wire.HeaderMarker: true},
		"no ledger":      {wire.HeaderLedger: nil},
		"ledger no UUID": {wire.HeaderLedger: "x"},
		"no time":        {wire.HeaderMarkerLook: nil},
		"time as text":   {wire.HeaderMarkerLook: "1"},
		"time negative":  {wire.HeaderMarkerLook: int64(-1)},
	} {
		headers := wire.Marker{Ledger: uuid.New(), Look: time.Now()}.Publishing().Headers
		maps.Copy(headers, wrong)
		if m, err := wire.ReadMarker(amqp.Delivery{Headers: headers}); !errors.Is(err, bridge.ErrMalformed) {
			t.Errorf("%s: read %+v, %v", name, m, err)
		}
	}
}
