package wire_test

import (
	"encoding/binary"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// A list of a million nulls takes a megabyte in a record, and sixteen in memory.
func TestARecordsPropertiesAreBoundedBeforeTheyAreDecoded(t *testing.T) {
	order := binary.BigEndian
	nulls := strings.Repeat("V", 1<<20)
	table := append([]byte{1, 'a', 'A'}, order.AppendUint32(nil, uint32(len(nulls)))...)
	table = append(table, nulls...)
	properties := append([]byte{0x20, 0}, order.AppendUint32(nil, uint32(len(table)))...) // the flag of headers
	properties = append(properties, table...)
	record := append(order.AppendUint32(nil, uint32(len(properties))), properties...)
	record = order.AppendUint32(record, 0) // no body

	group := wire.Group(uuid.Must(uuid.NewV7()), record)
	members, err := wire.Members(delivered(group))
	if err != nil || len(members) != 1 || len(members[0].Body) != len(record) {
		t.Fatalf("%d members, %v", len(members), err)
	}
	if _, err := wire.Parse(members[0]); !errors.Is(err, bridge.ErrMalformed) || !strings.Contains(err.Error(), "bytes of properties") {
		t.Errorf("parsed: %v", err)
	}
}

func TestTheNumberOfHeadersIsBounded(t *testing.T) {
	m := fullMessage()
	m.Publishing.Headers = amqp.Table{}
	for i := range 1000 {
		m.Publishing.Headers[strconv.Itoa(i)] = nil
	}
	staged, err := wire.Encode(m, someLedger)
	if err != nil {
		t.Fatalf("1000 headers: %v", err)
	}
	if _, err := wire.Parse(delivered(staged)); err != nil {
		t.Errorf("1000 headers: %v", err)
	}
	m.Publishing.Headers["one more"] = nil
	if _, err := wire.Encode(m, someLedger); !errors.Is(err, bridge.ErrInvalidMessage) || !strings.Contains(err.Error(), "at most 1000") {
		t.Errorf("1001 headers: %v", err)
	}
	staged.Headers["one more"] = nil
	if _, err := wire.Parse(delivered(staged)); !errors.Is(err, bridge.ErrMalformed) {
		t.Errorf("1001 headers: %v", err)
	}
}

// The AMQP library writes such headers, but a delivery with them ends the connection of every
// consumer, such as a verifier, each time. So they are neither sent nor stored. Headers that
// amqp091-go can read are both.
func TestHeadersThatNoConsumerCanReadAreNeitherSentNorStored(t *testing.T) {
	list := func(n int) []any { return slices.Repeat([]any{"x"}, n) }
	deep := any("bottom")
	for range 32 {
		deep = []any{deep}
	}
	for name, c := range map[string]struct {
		value      any
		read, sent bool
	}{
		"a megabyte":      {strings.Repeat("x", 1<<20), true, false}, // more than the bridge's frame takes
		"a list of 8192":  {list(8192), true, true},
		"a list of 8193":  {list(8193), false, false},
		"32 levels":       {deep, true, true},
		"33 levels":       {[]any{deep}, false, false},
		"inside of lists": {[]any{amqp.Table{"list": list(8193)}}, false, false},
		"a type of Go":    {struct{}{}, false, false},
		"a long name":     {amqp.Table{strings.Repeat("x", 256): ""}, false, false},
	} {
		m := fullMessage()
		m.Publishing.Headers = amqp.Table{"h": c.value}
		if _, err := wire.Encode(m, someLedger); (err == nil) != c.sent || err != nil && !errors.Is(err, bridge.ErrInvalidMessage) {
			t.Errorf("%s: sent with %v", name, err)
		}
		stored, err := wire.EncodeDelivery(amqp.Delivery{Headers: m.Publishing.Headers})
		if (err == nil) != c.read {
			t.Errorf("%s: stored with %v", name, err)
		}
		if err != nil {
			continue
		}
		if got, err := wire.ReadDelivery(stored); err != nil || !reflect.DeepEqual(got.Headers, m.Publishing.Headers) {
			t.Errorf("%s: read with %v", name, err)
		}
	}
	long := strings.Repeat("x", 256)
	for _, d := range []amqp.Delivery{{Exchange: long}, {RoutingKey: long}, {UserId: long}} {
		if _, err := wire.EncodeDelivery(d); err == nil {
			t.Errorf("stored: %+v", d)
		}
	}
}

func TestARecordThatCannotBeReadIsNoMessage(t *testing.T) {
	staged, err := wire.Encode(fullMessage(), someLedger)
	if err != nil {
		t.Fatal(err)
	}
	record := wire.EncodeRecord(staged)
	record[4] ^= 0xff // the property flags
	if p, err := wire.Alone(someLedger, record); !errors.Is(err, bridge.ErrMalformed) {
		t.Errorf("%+v, %v", p, err)
	}
}
