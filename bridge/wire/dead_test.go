package wire_test

import (
	"errors"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// A dead record restores any message, with the verifier's headers added and none that a sender has
// imitated.
func TestADeadRecordKeepsTheMessageWhole(t *testing.T) {
	deep := amqp.Table{}
	for range 100 {
		deep = amqp.Table{"t": deep}
	}
	headers := amqp.Table{
		"huge": strings.Repeat("x", 200_000), "deep": deep, "list": []any{int32(1), "a", nil},
		wire.HeaderLedger: int32(7), wire.HeaderDeadRecord: "made up",
		"x-bridge-dead-huge": strings.Repeat("x", 200_000),
	}
	verdict := amqp.Table{wire.HeaderDeadReason: wire.DeadMalformed, wire.HeaderDeadAttempts: int64(3)}
	letter := amqp.Publishing{
		Headers: maps.Clone(headers), ContentType: "a", ContentEncoding: "b", DeliveryMode: amqp.Persistent, Priority: 4,
		CorrelationId: "c", ReplyTo: "d", MessageId: "e", Timestamp: time.Unix(1700000000, 0), Type: "f", AppId: "g", Body: []byte("body"),
	}
	maps.Copy(letter.Headers, verdict)
	record := wire.DeadRecord(letter)
	if record.MessageId != "e" || record.DeliveryMode != amqp.Persistent || len(record.Headers) != 3 {
		t.Errorf("the letter: %+v", record)
	}
	opened, err := wire.OpenDead(delivered(record))
	if err != nil {
		t.Fatal(err)
	}
	if got := wire.Republished(opened); opened.Headers[wire.HeaderDeadRecord] != "made up" || !reflect.DeepEqual(got, letter) {
		t.Errorf("opened\n got %+v\nwant %+v", got, letter)
	}
	plain := delivered(amqp.Publishing{MessageId: "e", Headers: verdict})
	if got, err := wire.OpenDead(plain); err != nil || !reflect.DeepEqual(got, plain) {
		t.Errorf("a letter that is none: %+v, %v", got, err)
	}
	for _, bad := range []amqp.Publishing{
		{Headers: amqp.Table{wire.HeaderDeadRecord: "2"}, Body: record.Body},
		{Headers: amqp.Table{wire.HeaderDeadRecord: "1"}, Body: record.Body[:5]},
		{Headers: amqp.Table{wire.HeaderDeadRecord: "1"}, Body: append(record.Body, 0)},
		{Headers: amqp.Table{wire.HeaderDeadRecord: "1"}, Body: []byte{0, 0, 0, 2, 0x20, 0, 0, 0, 0, 0}},
	} {
		if got, err := wire.OpenDead(delivered(bad)); !errors.Is(err, bridge.ErrMalformed) || !reflect.DeepEqual(got, delivered(bad)) {
			t.Errorf("a bad record: %v", err)
		}
	}
}
