package wire_test

import (
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// A list of a million nulls is a megabyte in a record, and sixteen in memory.
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

// The AMQP library writes such headers, and a delivery with them ends the connection of
// whoever consumes it: the verifier's, each time.
func TestWhatNoConsumerCouldReadIsNotSent(t *testing.T) {
	list := func(n int) []any { return slices.Repeat([]any{""}, n) }
	deep := any("bottom")
	for range 32 {
		deep = []any{deep}
	}
	for name, c := range map[string]struct {
		value any
		sent  bool
	}{
		"a list of 8192":  {list(8192), true},
		"a list of 8193":  {list(8193), false},
		"32 levels":       {deep, true},
		"33 levels":       {amqp.Table{"one more": deep}, false},
		"inside of lists": {[]any{amqp.Table{"list": list(8193)}}, false},
	} {
		m := fullMessage()
		m.Publishing.Headers = amqp.Table{"header": c.value}
		if _, err := wire.Encode(m, someLedger); (err == nil) != c.sent || err != nil && !errors.Is(err, bridge.ErrInvalidMessage) {
			t.Errorf("%s: %v", name, err)
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
