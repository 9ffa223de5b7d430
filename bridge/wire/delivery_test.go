package wire_test

import (
	"encoding/hex"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// Inboxes hold these bytes: the format must never change.
func TestTheFormatOfAStoredDeliveryHasNotChanged(t *testing.T) {
	d := amqp.Delivery{
		Exchange:   "orders",
		RoutingKey: "order.placed",
		Headers:    amqp.Table{"x-bridge-ledger": int32(7)},
		MessageId:  "id",
		UserId:     "shop",
		Body:       []byte("body"),
	}
	want := "\x01" +
		"\x06orders" +
		"\x0corder.placed" +
		"\x00\x00\x00\x23" + // length of the properties
		"\x20\x90" + // headers; message ID, user ID
		"\x00\x00\x00\x15" + "\x0fx-bridge-ledger" + "I\x00\x00\x00\x07" +
		"\x02id" +
		"\x04shop" +
		"\x00\x00\x00\x04body"
	got, err := wire.EncodeDelivery(d)
	if err != nil || string(got) != want {
		t.Errorf("stored\n%s\nwant\n%s (%v)", hex.Dump(got), hex.Dump([]byte(want)), err)
	}
	if read, err := wire.ReadDelivery([]byte(want)); err != nil || !reflect.DeepEqual(read, d) {
		t.Errorf("read %+v (%v)", read, err)
	}
}

func TestEveryDeliveryIsStoredAsItIs(t *testing.T) {
	short := rapid.StringN(-1, -1, 255)
	name := rapid.OneOf(short, rapid.SampledFrom(names))
	rapid.Check(t, func(t *rapid.T) {
		d := amqp.Delivery{
			Headers:     rapid.MapOfN(name, anyValue(3), 0, 5).Draw(t, "headers"),
			ContentType: short.Draw(t, "content type"), ContentEncoding: short.Draw(t, "encoding"),
			DeliveryMode: rapid.Uint8().Draw(t, "mode"), Priority: rapid.Uint8().Draw(t, "priority"),
			CorrelationId: short.Draw(t, "correlation"), ReplyTo: short.Draw(t, "reply to"), Expiration: short.Draw(t, "expiration"),
			MessageId: short.Draw(t, "id"), Timestamp: time.Unix(rapid.Int64Min(0).Draw(t, "time"), 0),
			Type: short.Draw(t, "type"), UserId: short.Draw(t, "user"), AppId: short.Draw(t, "app"),
			Exchange: short.Draw(t, "exchange"), RoutingKey: short.Draw(t, "key"), Body: rapid.SliceOf(rapid.Byte()).Draw(t, "body"),
		}
		if rapid.Bool().Draw(t, "no headers") {
			d.Headers = nil
		}
		stored, err := wire.EncodeDelivery(d)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := wire.ReadDelivery(stored); err != nil || !reflect.DeepEqual(got, d) {
			t.Fatalf("read (%v)\n%#v\nstored\n%#v", err, got, d)
		}
	})
}

func TestBytesOfNoStoredDeliveryAreMalformed(t *testing.T) {
	good, err := wire.EncodeDelivery(amqp.Delivery{Exchange: "e", MessageId: "id", Body: []byte("body")})
	if err != nil {
		t.Fatal(err)
	}
	for n := range good {
		if _, err := wire.ReadDelivery(good[:n]); !errors.Is(err, bridge.ErrMalformed) {
			t.Errorf("the first %d bytes: %v", n, err)
		}
	}
	for name, bad := range map[string][]byte{
		"more behind it": append(slices.Clone(good), 0),
		"another format": append([]byte{2}, good[1:]...),
		"an exchange that is longer than the rest, which is a record": append([]byte{1, 200}, good[4:]...),
	} {
		if _, err := wire.ReadDelivery(bad); !errors.Is(err, bridge.ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzReadDelivery(f *testing.F) {
	good, err := wire.EncodeDelivery(amqp.Delivery{Exchange: "e", Headers: amqp.Table{"a": []any{int32(1)}}, Body: []byte("body")})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte{1, 0, 0})
	f.Fuzz(func(t *testing.T, stored []byte) {
		d, err := wire.ReadDelivery(stored)
		if err != nil {
			if !errors.Is(err, bridge.ErrMalformed) {
				t.Fatalf("error is not ErrMalformed: %v", err)
			}
			return
		}
		if _, err := wire.EncodeDelivery(d); err != nil && len(stored) < 8192 {
			t.Errorf("read, and cannot be stored: %v", err)
		}
	})
}
