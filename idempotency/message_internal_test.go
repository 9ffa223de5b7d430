package idempotency

import (
	"math"
	"reflect"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"
)

// headerValue draws a header's value of any type that a broker delivers.
func headerValue(depth int) *rapid.Generator[any] {
	kinds := []*rapid.Generator[any]{
		rapid.Just[any](nil),
		rapid.Bool().AsAny(), rapid.Int8().AsAny(), rapid.Uint8().AsAny(), rapid.Int16().AsAny(), rapid.Uint16().AsAny(),
		rapid.Int32().AsAny(), rapid.Uint32().AsAny(), rapid.Int64().AsAny(), rapid.Int().AsAny(),
		rapid.Float32().AsAny(), rapid.Float64().AsAny(), rapid.String().AsAny(),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }).AsAny(),
		rapid.SliceOfN(rapid.Byte(), 1, 20).AsAny(),
		rapid.Map(rapid.Int64Min(0), func(s int64) time.Time { return time.Unix(s, 0) }).AsAny(),
		rapid.Custom(func(t *rapid.T) amqp.Decimal {
			return amqp.Decimal{Scale: rapid.Uint8().Draw(t, "scale"), Value: rapid.Int32().Draw(t, "value")}
		}).AsAny(),
	}
	if depth > 0 {
		kinds = append(kinds,
			rapid.Map(rapid.SliceOfN(headerValue(depth-1), 0, 3), func(v []any) []any { return v }).AsAny(),
			headerTable(depth-1).AsAny())
	}
	return rapid.OneOf(kinds...)
}

func headerTable(depth int) *rapid.Generator[amqp.Table] {
	return rapid.Map(rapid.MapOfN(rapid.String(), headerValue(depth), 0, 4), func(m map[string]any) amqp.Table { return m })
}

func TestAStoredMessageIsTheSameAfterwards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String()
		d := amqp.Delivery{
			Headers: headerTable(2).Draw(t, "headers"), ContentType: text.Draw(t, "content type"), ContentEncoding: text.Draw(t, "encoding"),
			DeliveryMode: rapid.Uint8().Draw(t, "mode"), Priority: rapid.Uint8().Draw(t, "priority"),
			CorrelationId: text.Draw(t, "correlation"), ReplyTo: text.Draw(t, "reply to"), Expiration: text.Draw(t, "expiration"),
			MessageId: text.Draw(t, "id"), Timestamp: time.Unix(rapid.Int64Min(0).Draw(t, "time"), 0),
			Type: text.Draw(t, "type"), UserId: text.Draw(t, "user"), AppId: text.Draw(t, "app"),
			Exchange: text.Draw(t, "exchange"), RoutingKey: text.Draw(t, "key"), Body: rapid.SliceOfN(rapid.Byte(), 1, 50).Draw(t, "body"),
		}
		stored, err := encodeMessage(d)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeMessage(stored)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, d) {
			t.Fatalf("stored\n%#v\nread\n%#v\nas %s", d, got, stored)
		}
	})
}

func TestNotANumberIsStoredToo(t *testing.T) {
	stored, err := encodeMessage(amqp.Delivery{Headers: amqp.Table{"x": math.NaN(), "y": float32(math.Inf(-1))}})
	if err != nil {
		t.Fatal(err)
	}
	d, err := decodeMessage(stored)
	if err != nil {
		t.Fatal(err)
	}
	if x := d.Headers["x"].(float64); !math.IsNaN(x) || d.Headers["y"] != float32(math.Inf(-1)) {
		t.Errorf("read %v", d.Headers)
	}
}

func FuzzDecodeMessage(f *testing.F) {
	f.Add([]byte(`{"message_id":"m1","headers":{"a":{"type":"list","list":[{"type":"int32","value":"1"}]}},"body":"AA=="}`))
	f.Add([]byte(`{"headers":{"a":{"type":"decimal","value":"1/2"}}}`))
	f.Fuzz(func(t *testing.T, stored []byte) {
		d, err := decodeMessage(stored)
		if err != nil {
			return
		}
		if _, err := encodeMessage(d); err != nil {
			t.Errorf("read, and cannot be stored: %v", err)
		}
	})
}
