package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/twoqueue/twoqueue/idempotency"
)

// headerValue draws a header's value of any type that a broker delivers.
func headerValue(depth int) *rapid.Generator[any] {
	kinds := []*rapid.Generator[any]{
		rapid.Just[any](nil),
		rapid.Bool().AsAny(), rapid.Int8().AsAny(), rapid.Uint8().AsAny(), rapid.Int16().AsAny(), rapid.Uint16().AsAny(),
		rapid.Int32().AsAny(), rapid.Uint32().AsAny(), rapid.Int64().AsAny(),
		rapid.Float32().AsAny(), rapid.Float64().AsAny(), rapid.String().AsAny(),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }).AsAny(),
		rapid.SliceOf(rapid.Byte()).AsAny(),
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
	return rapid.Map(rapid.MapOfN(rapid.StringN(-1, -1, 255), headerValue(depth), 0, 4), func(m map[string]any) amqp.Table { return m })
}

func TestAStoredMessageIsTheSameAfterwards(t *testing.T) {
	r := newReceiver(t, idempotency.Options{})
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		text := rapid.StringN(-1, -1, 255)
		d := amqp.Delivery{
			Headers: headerTable(2).Draw(t, "headers"), ContentType: text.Draw(t, "content type"), ContentEncoding: text.Draw(t, "encoding"),
			DeliveryMode: rapid.Uint8().Draw(t, "mode"), Priority: rapid.Uint8().Draw(t, "priority"),
			CorrelationId: text.Draw(t, "correlation"), ReplyTo: text.Draw(t, "reply to"), Expiration: text.Draw(t, "expiration"),
			MessageId: fmt.Sprintf("m%d", n), Timestamp: time.Unix(rapid.Int64Min(0).Draw(t, "time"), 0),
			Type: text.Draw(t, "type"), UserId: text.Draw(t, "user"), AppId: text.Draw(t, "app"),
			Exchange: text.Draw(t, "exchange"), RoutingKey: text.Draw(t, "key"), Body: rapid.SliceOf(rapid.Byte()).Draw(t, "body"),
		}
		delivered := d
		delivered.Acknowledger, delivered.DeliveryTag, delivered.Redelivered, delivered.ConsumerTag = r.channel, 1, true, "c"
		if err := r.guard.Accept(context.Background(), r.db, delivered); err != nil {
			t.Fatal(err)
		}
		found, err := r.guard.Pending(context.Background(), r.db, idempotency.Ready, "", 2)
		if err != nil || len(found) != 1 {
			t.Fatalf("%d messages are ready, %v", len(found), err)
		}
		if !reflect.DeepEqual(found[0].Message, d) {
			t.Fatalf("stored\n%#v\nread\n%#v (%s)", d, found[0].Message, found[0].Error)
		}
		if err := r.guard.MarkDone(context.Background(), r.db, d.MessageId); err != nil {
			t.Fatal(err)
		}
	})
}

// The body that an effect gets is its own: what it writes into it is not stored.
func TestAnEffectDoesNotChangeWhatIsStored(t *testing.T) {
	r := newReceiver(t, idempotency.Options{})
	d := r.delivery("m1")
	d.Body = []byte("body")
	if err := r.guard.Accept(t.Context(), r.db, d); err != nil {
		t.Fatal(err)
	}
	r.resume(func(_ context.Context, d amqp.Delivery) error {
		clear(d.Body)
		return errors.New("who knows")
	})
	if p := r.pending(idempotency.Doubtful); string(p.Message.Body) != "body" {
		t.Errorf("stored %q", p.Message.Body)
	}
}
