package wire_test

import (
	"errors"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// FuzzParse: Parse panics on no message, and an accepted message can be staged again and is then
// the same.
func FuzzParse(f *testing.F) {
	ledger, id := someLedger.String(), someID.String()
	f.Add(id, ledger, "exchange", "key", "", "", []byte{})
	f.Add(id, ledger, "", "queue", "1000", "user", []byte("\x00\x01\x05\x06\x01a"))
	f.Add("", "", "", "", "-1", "", []byte("\x03\x06\x04\x07\x02\x08\x00\x00"))
	f.Fuzz(func(t *testing.T, id, ledger, exchange, key, expiration, user string, more []byte) {
		headers, _ := table(more, 0)
		for name, value := range map[string]string{
			wire.HeaderLedger: ledger, wire.HeaderExchange: exchange, wire.HeaderRoutingKey: key,
		} {
			if _, ok := headers[name]; !ok {
				headers[name] = value
			}
		}
		d := amqp.Delivery{MessageId: id, Headers: headers, Expiration: expiration, UserId: user, Body: more}
		before := maps.Clone(headers)
		staged, err := wire.Parse(d)
		if !reflect.DeepEqual(headers, before) {
			t.Fatalf("changed the headers %v to %v", before, headers)
		}
		if err != nil {
			if !errors.Is(err, bridge.ErrMalformed) {
				t.Fatalf("error is not ErrMalformed: %v", err)
			}
			return
		}
		final := staged.Message.Publishing
		if final.MessageId != staged.ID.String() || final.DeliveryMode != amqp.Persistent || final.UserId != "" {
			t.Fatalf("final message %#v", final)
		}
		for name := range final.Headers {
			if strings.HasPrefix(name, "x-bridge-") {
				t.Fatalf("the receiver sees header %s", name)
			}
		}
		again := staged.Publishing()
		if again.Priority != 0 || again.Expiration != "" || again.UserId != "" || again.Headers["CC"] != nil || again.Headers["BCC"] != nil {
			t.Fatalf("acts in the staging queue: %#v", again)
		}
		if parsed, err := wire.Parse(delivered(again)); err != nil || !reflect.DeepEqual(parsed, staged) {
			t.Fatalf("staged again (%v)\n%#v\nwas\n%#v", err, parsed, staged)
		}
	})
}

// names are names of headers, some with a meaning and some without.
var names = []string{
	"a", "b", "c", "CC", "BCC", "x-death", "x-delivery-count",
	wire.HeaderCC, wire.HeaderBCC, wire.HeaderExpiration, wire.HeaderUserID,
	wire.HeaderLedger, wire.HeaderExchange, wire.HeaderRoutingKey, wire.HeaderUnroutableSince, wire.HeaderOrderKey, wire.HeaderPriority,
}

// table makes headers from bytes: for each a name, a kind and the kind's value. It returns the
// unused bytes.
func table(p []byte, depth int) (amqp.Table, []byte) {
	t := amqp.Table{}
	for len(p) >= 2 && p[0] != 0xff {
		name := names[int(p[0])%len(names)]
		t[name], p = value(p[1:], depth)
	}
	return t, p[min(1, len(p)):]
}

func value(p []byte, depth int) (any, []byte) {
	kind, p := p[0]%9, p[1:]
	switch {
	case kind == 1:
		return int32(len(p)), p
	case kind == 2:
		return []byte("bytes"), p
	case kind == 3:
		return amqp.Decimal{Scale: 2, Value: 100}, p
	case kind == 4 && depth < 4:
		return table(p, depth+1)
	case kind == 5 && depth < 4:
		list := []any{}
		for len(p) > 0 && p[0] != 0xff {
			var element any
			element, p = value(p, depth+1)
			list = append(list, element)
		}
		return list, p[min(1, len(p)):]
	case kind >= 6:
		n := 0
		if len(p) > 0 {
			n, p = min(int(p[0]), len(p)-1), p[1:]
		}
		return string(p[:n]), p[n:]
	}
	return nil, p
}

func TestEveryValidMessageSurvivesTheStaging(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := anyMessage(t)
		before := m
		before.Publishing.Headers = maps.Clone(m.Publishing.Headers)
		staged, err := wire.Encode(m, someLedger)
		if err != nil {
			t.Fatalf("encode: %v", err)
		}
		if !reflect.DeepEqual(m, before) {
			t.Fatalf("encode has changed the message to %#v", m)
		}
		got, err := wire.Parse(delivered(staged))
		if err != nil {
			t.Fatalf("parse: %v", err)
		}
		want := wire.Staged{Message: m, Ledger: someLedger, UserID: m.Publishing.UserId, StagedAt: got.StagedAt}
		want.Message.Publishing.MessageId = m.ID.String()
		want.Message.Publishing.DeliveryMode = amqp.Persistent
		want.Message.Publishing.UserId = ""
		if len(m.Publishing.Headers) == 0 {
			want.Message.Publishing.Headers = nil
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("parsed\n%#v\nwant\n%#v", got, want)
		}
	})
}

func anyMessage(t *rapid.T) bridge.Message {
	short := rapid.StringN(0, -1, 255)
	id := uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
	id[0] |= 1 // never zero
	headers := amqp.Table(rapid.MapOfN(rapid.StringMatching(`[a-zA-Z]{3,30}`), anyValue(3), 0, 5).Draw(t, "headers"))
	delete(headers, "CC") // these are lists of keys, and drawn below
	delete(headers, "BCC")
	for _, name := range []string{"CC", "BCC"} {
		if rapid.Bool().Draw(t, name) {
			headers[name] = rapid.SliceOfN(rapid.Map(short, func(s string) any { return s }), 0, 3).Draw(t, name+" keys")
		}
	}
	expiration := ""
	if rapid.Bool().Draw(t, "expires") {
		expiration = rapid.StringMatching(`[0-9]{1,11}`).Draw(t, "expiration")
	}
	orderKey, priority := "", rapid.Byte().Draw(t, "priority")
	if rapid.Bool().Draw(t, "in order") {
		orderKey, priority = rapid.StringMatching(`[a-zé ]{1,50}`).Draw(t, "order key"), 0
	}
	return bridge.Message{
		ID:         id,
		OrderKey:   orderKey,
		Exchange:   short.Draw(t, "exchange"),
		RoutingKey: rapid.StringN(1, -1, 255).Draw(t, "routing key"),
		Publishing: amqp.Publishing{
			Headers:         headers,
			ContentType:     short.Draw(t, "content type"),
			ContentEncoding: short.Draw(t, "content encoding"),
			DeliveryMode:    rapid.Uint8Range(0, 2).Draw(t, "delivery mode"),
			Priority:        priority,
			CorrelationId:   short.Draw(t, "correlation-id"),
			ReplyTo:         short.Draw(t, "reply-to"),
			Expiration:      expiration,
			MessageId:       rapid.SampledFrom([]string{"", id.String()}).Draw(t, "message-id"),
			Timestamp:       time.Unix(rapid.Int64Range(0, 1<<40).Draw(t, "timestamp"), 0),
			Type:            short.Draw(t, "type"),
			UserId:          short.Draw(t, "user-id"),
			AppId:           short.Draw(t, "app-id"),
			Body:            rapid.SliceOf(rapid.Byte()).Draw(t, "body"),
		},
	}
}

func anyValue(depth int) *rapid.Generator[any] {
	kinds := []*rapid.Generator[any]{
		rapid.String().AsAny(), rapid.Int64().AsAny(), rapid.Int32().AsAny(), rapid.Bool().AsAny(),
		rapid.Float64().AsAny(), rapid.SliceOf(rapid.Byte()).AsAny(), rapid.Just[any](nil),
		rapid.Int8().AsAny(), rapid.Uint8().AsAny(), rapid.Int16().AsAny(), rapid.Uint16().AsAny(), rapid.Uint32().AsAny(),
		rapid.Float32().AsAny(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }).AsAny(),
		rapid.Map(rapid.Int64Min(0), func(s int64) time.Time { return time.Unix(s, 0) }).AsAny(),
		rapid.Custom(func(t *rapid.T) amqp.Decimal {
			return amqp.Decimal{Scale: rapid.Uint8().Draw(t, "scale"), Value: rapid.Int32().Draw(t, "value")}
		}).AsAny(),
	}
	if depth > 0 {
		kinds = append(kinds,
			rapid.Map(rapid.MapOfN(rapid.StringN(0, -1, 30), anyValue(depth-1), 0, 3), func(m map[string]any) any { return amqp.Table(m) }),
			rapid.Map(rapid.SliceOfN(anyValue(depth-1), 0, 3), func(s []any) any { return s }),
		)
	}
	return rapid.OneOf(kinds...)
}
