package idempotency

import (
	"math"
	"reflect"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// What was stored before release 0.1.0, as that code wrote it.
func TestAMessageThatLiesInAnInboxAsJSONIsRead(t *testing.T) {
	for stored, want := range map[string]amqp.Delivery{
		`{"message_id":"m2","body":null}`: {MessageId: "m2"},
		`{"exchange":"orders","routing_key":"order.placed","message_id":"m1","content_type":"text/plain","content_encoding":"gzip",` +
			`"delivery_mode":2,"priority":9,"correlation_id":"c","reply_to":"answers","expiration":"1000","timestamp":1700000000,` +
			`"type":"t","user_id":"shop","app_id":"a","headers":{"bytes":{"type":"bytes","value":"AP8="},` +
			`"decimal":{"type":"decimal","value":"-100/2"},"float32":{"type":"float32","value":"1.5"},` +
			`"float64":{"type":"float64","value":"3.141592653589793"},"infinite":{"type":"float64","value":"+Inf"},` +
			`"int":{"type":"int","value":"-4"},"int16":{"type":"int16","value":"-2"},"int32":{"type":"int32","value":"-3"},` +
			`"int64":{"type":"int64","value":"-9223372036854775808"},"int8":{"type":"int8","value":"-1"},` +
			`"list":{"type":"list","list":[{"type":"int32","value":"1"},{"type":"list"},{"type":"table","table":{"a":{"type":"string","value":"b"}}}]},` +
			`"nil":{"type":"void"},"no text":{"type":"string, base64","value":"/w=="},"string":{"type":"string","value":"text"},` +
			`"table":{"type":"table","table":{"":{"type":"table","table":{}}}},"time":{"type":"time","value":"1700000000"},` +
			`"true":{"type":"bool","value":"true"},"uint16":{"type":"uint16","value":"65535"},` +
			`"uint32":{"type":"uint32","value":"4294967295"},"uint8":{"type":"uint8","value":"200"}},"body":"Ym9keQA="}`: {
			Exchange: "orders", RoutingKey: "order.placed", MessageId: "m1", ContentType: "text/plain", ContentEncoding: "gzip",
			DeliveryMode: 2, Priority: 9, CorrelationId: "c", ReplyTo: "answers", Expiration: "1000", Timestamp: time.Unix(1700000000, 0),
			Type: "t", UserId: "shop", AppId: "a", Body: []byte("body\x00"),
			Headers: amqp.Table{
				"nil": nil, "true": true, "int8": int8(-1), "uint8": uint8(200), "int16": int16(-2), "uint16": uint16(65535),
				"int32": int32(-3), "uint32": uint32(math.MaxUint32), "int64": int64(math.MinInt64), "int": -4,
				"float32": float32(1.5), "float64": math.Pi, "infinite": math.Inf(1), "decimal": amqp.Decimal{Scale: 2, Value: -100},
				"time": time.Unix(1700000000, 0), "string": "text", "no text": "\xff", "bytes": []byte{0, 255},
				"table": amqp.Table{"": amqp.Table{}}, "list": []any{int32(1), []any{}, amqp.Table{"a": "b"}},
			},
		},
	} {
		if got, err := decodeMessage([]byte(stored)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("read (%v)\n%#v\nwant\n%#v", err, got, want)
		}
	}
}

func FuzzDecodeMessage(f *testing.F) {
	f.Add([]byte(`{"message_id":"m1","headers":{"a":{"type":"list","list":[{"type":"int32","value":"1"}]}},"body":"AA=="}`))
	f.Add([]byte(`{"headers":{"a":{"type":"decimal","value":"1/2"}}}`))
	f.Add([]byte("\x01\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, stored []byte) {
		_, _ = decodeMessage(stored) // does not panic
	})
}
