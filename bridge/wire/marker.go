package wire

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// HeaderMarker marks a marker, and names its format: "1".
const HeaderMarker = "x-bridge-marker"

// HeaderMarkerLook is the database's time of a marker's look, in microseconds since 1970.
const HeaderMarkerLook = "x-bridge-marker-look"

const markerFormat = "1"

// A Marker is no message for a receiver. A verifier publishes it to the staging queue after a look
// at the ledger that has found carried rows whose stage time has come. When the marker has passed
// through the staging queue and then the waiting queue, no copy of such a message is in front of it
// any more.
type Marker struct {
	Ledger uuid.UUID // identity of the ledger
	Look   time.Time // when the verifier looked, by the database's clock, to the microsecond
}

// Publishing returns the marker as it goes into the staging queue, and later into the waiting
// queue.
func (m Marker) Publishing() amqp.Publishing {
	return amqp.Publishing{
		MessageId:    uuid.Must(uuid.NewV7()).String(),
		DeliveryMode: amqp.Persistent,
		Headers: amqp.Table{
			HeaderMarker:     markerFormat,
			HeaderLedger:     m.Ledger.String(),
			HeaderMarkerLook: m.Look.UnixMicro(),
		},
	}
}

// IsMarker reports whether a delivery is a marker, perhaps a malformed one.
func IsMarker(d amqp.Delivery) bool {
	_, ok := d.Headers[HeaderMarker]
	return ok
}

// ReadMarker reads a marker. Its error wraps bridge.ErrMalformed and names the fault.
func ReadMarker(d amqp.Delivery) (Marker, error) {
	m, err := readMarker(d)
	if err != nil {
		return Marker{}, fmt.Errorf("%w: marker: %w", bridge.ErrMalformed, err)
	}
	return m, nil
}

func readMarker(d amqp.Delivery) (m Marker, err error) {
	format, err := stringHeader(d.Headers, HeaderMarker, true)
	if err != nil {
		return m, err
	}
	if format != markerFormat {
		return m, fmt.Errorf("header %s: format %s is not known", HeaderMarker, strconv.Quote(format))
	}
	ledger, err := stringHeader(d.Headers, HeaderLedger, true)
	if err != nil {
		return m, err
	}
	if m.Ledger, err = parseUUID(ledger); err != nil {
		return m, fmt.Errorf("header %s: %w", HeaderLedger, err)
	}
	look, ok := d.Headers[HeaderMarkerLook].(int64)
	if !ok {
		return m, fmt.Errorf("header %s: is %T, not a 64-bit integer", HeaderMarkerLook, d.Headers[HeaderMarkerLook])
	}
	if look <= 0 {
		return m, errors.New("header " + HeaderMarkerLook + ": not a time after 1970")
	}
	m.Look = time.UnixMicro(look).UTC()
	return m, nil
}
