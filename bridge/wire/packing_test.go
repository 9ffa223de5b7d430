package wire_test

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

func recordOf(id string, bytes int) []byte {
	return wire.EncodeRecord(amqp.Publishing{MessageId: id, Body: []byte(strings.Repeat("x", bytes))})
}

func TestPackKeepsEveryRecordInOrderAndEachGroupIsAsLargeAsItsBoundsAllow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		packing := wire.Packing{
			Records: rapid.IntRange(1, 6).Draw(t, "records"),
			Bytes:   rapid.IntRange(0, 400).Draw(t, "bytes"),
		}
		var records [][]byte
		for i, bytes := range rapid.SliceOfN(rapid.IntRange(0, 300), 0, 30).Draw(t, "bodies") {
			records = append(records, recordOf(strconv.Itoa(i), bytes))
		}
		staged, err := packing.Pack(someLedger, slices.Clone(records))
		if err != nil {
			t.Fatal(err)
		}
		next := 0
		for _, one := range staged {
			members, err := wire.Members(delivered(one))
			if err != nil {
				t.Fatal(err)
			}
			size := 0
			for i, m := range members {
				if m.MessageId != strconv.Itoa(next+i) || m.Headers[wire.HeaderLedger] != someLedger.String() {
					t.Fatalf("record %d is %q of ledger %v", next+i, m.MessageId, m.Headers[wire.HeaderLedger])
				}
				size += len(records[next+i])
			}
			n := len(members)
			if first, bytes := packing.First(records[next:]); first != n || bytes != size {
				t.Fatalf("First is %d records, %d bytes; the group has %d, %d", first, bytes, n, size)
			}
			if n > 1 && (n > packing.Records || size > packing.Bytes) {
				t.Fatalf("a group of %d records, %d bytes, for %+v", n, size, packing)
			}
			if _, group := one.Headers[wire.HeaderGroup]; group != (n > 1) {
				t.Fatalf("%d records, a group: %t", n, group)
			}
			next += n
			if next < len(records) && n < packing.Records && size+len(records[next]) <= packing.Bytes {
				t.Fatalf("record %d fits into the group before it", next)
			}
		}
		if next != len(records) {
			t.Fatalf("%d records of %d", next, len(records))
		}
	})
}

func TestPackRefusesASingleRecordThatIsUnreadable(t *testing.T) {
	packing := wire.Packing{Records: wire.MaxMembers, Bytes: 100}
	staged, err := packing.Pack(someLedger, [][]byte{recordOf("large", 100), recordOf("large too", 100)[:50]})
	if !errors.Is(err, bridge.ErrMalformed) || staged != nil {
		t.Errorf("%d staged messages, %v", len(staged), err)
	}
}
