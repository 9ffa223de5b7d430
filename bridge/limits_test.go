package bridge_test

import (
	"encoding/binary"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
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

	group := bridge.Group(uuid.Must(uuid.NewV7()), record)
	members, err := bridge.Members(delivered(group))
	if err != nil || len(members) != 1 || len(members[0].Body) != len(record) {
		t.Fatalf("%d members, %v", len(members), err)
	}
	if _, err := bridge.Parse(members[0]); !errors.Is(err, bridge.ErrMalformed) || !strings.Contains(err.Error(), "bytes of properties") {
		t.Errorf("parsed: %v", err)
	}
}

func TestTheNumberOfHeadersIsBounded(t *testing.T) {
	m := fullMessage()
	m.Publishing.Headers = amqp.Table{}
	for i := range 1000 {
		m.Publishing.Headers[strconv.Itoa(i)] = nil
	}
	staged, err := bridge.Encode(m, someLedger)
	if err != nil {
		t.Fatalf("1000 headers: %v", err)
	}
	if _, err := bridge.Parse(delivered(staged)); err != nil {
		t.Errorf("1000 headers: %v", err)
	}
	m.Publishing.Headers["one more"] = nil
	if _, err := bridge.Encode(m, someLedger); !errors.Is(err, bridge.ErrInvalidMessage) || !strings.Contains(err.Error(), "at most 1000") {
		t.Errorf("1001 headers: %v", err)
	}
	staged.Headers["one more"] = nil
	if _, err := bridge.Parse(delivered(staged)); !errors.Is(err, bridge.ErrMalformed) {
		t.Errorf("1001 headers: %v", err)
	}
}
