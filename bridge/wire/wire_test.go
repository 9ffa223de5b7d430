package wire_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

var (
	someID     = uuid.MustParse("01920000-0000-7000-8000-000000000001")
	someLedger = uuid.MustParse("6f9b4f3e-54a5-4a4c-9c52-3d6f0d9a1b2c")
)

// fullMessage returns a message with every field set.
func fullMessage() bridge.Message {
	return bridge.Message{
		ID: someID, Exchange: "orders", RoutingKey: "order.placed",
		Publishing: amqp.Publishing{
			Headers: amqp.Table{
				"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
				"nested":      amqp.Table{"list": []any{int32(1), "two", nil, []byte{3}}},
				"CC":          []any{"copy.one", "copy.two"},
				"BCC":         []any{"blind"},
			},
			ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: amqp.Transient,
			Priority: 7, CorrelationId: "correlation", ReplyTo: "answers", Expiration: "60000",
			Timestamp: time.Unix(1700000000, 0), Type: "OrderPlaced", UserId: "shop", AppId: "app",
			Body: []byte(`{"order":1}`),
		},
	}
}

// delivered returns p as the broker delivers it to a consumer.
func delivered(p amqp.Publishing) amqp.Delivery {
	return amqp.Delivery{
		Headers: p.Headers, ContentType: p.ContentType, ContentEncoding: p.ContentEncoding,
		DeliveryMode: p.DeliveryMode, Priority: p.Priority, CorrelationId: p.CorrelationId,
		ReplyTo: p.ReplyTo, Expiration: p.Expiration, MessageId: p.MessageId, Timestamp: p.Timestamp,
		Type: p.Type, UserId: p.UserId, AppId: p.AppId, Body: p.Body,
	}
}

// Senders in other languages write these names in this form: both must never change.
func TestTheWireFormatHasNotChanged(t *testing.T) {
	got, err := wire.Encode(fullMessage(), someLedger)
	if err != nil {
		t.Fatal(err)
	}
	want := fullMessage().Publishing
	want.MessageId = "01920000-0000-7000-8000-000000000001"
	want.DeliveryMode = 2
	want.Expiration = ""
	want.Priority = 0
	want.UserId = ""
	want.Headers = amqp.Table{
		"traceparent":          "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"nested":               amqp.Table{"list": []any{int32(1), "two", nil, []byte{3}}},
		"x-bridge-ledger":      "6f9b4f3e-54a5-4a4c-9c52-3d6f0d9a1b2c",
		"x-bridge-exchange":    "orders",
		"x-bridge-routing-key": "order.placed",
		"x-bridge-expiration":  "60000",
		"x-bridge-cc":          []any{"copy.one", "copy.two"},
		"x-bridge-bcc":         []any{"blind"},
		"x-bridge-user-id":     "shop",
		"x-bridge-priority":    "7",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("staged form\n%#v\nwant\n%#v", got, want)
	}
	for name, want := range map[string]string{
		wire.HeaderOrderKey:        "x-bridge-order-key",
		wire.HeaderCarried:         "x-bridge-carried",
		wire.HeaderRestaged:        "x-bridge-restaged",
		wire.HeaderUnroutableSince: "x-bridge-unroutable-since",
		wire.HeaderStagedAt:        "x-bridge-staged-at",
		wire.HeaderAttempts:        "x-bridge-attempts",
		wire.HeaderDroppedAt:       "x-bridge-dropped-at",
		wire.HeaderDeadAttempts:    "x-bridge-dead-attempts",
		wire.HeaderDeadReason:      "x-bridge-dead-reason",
		wire.HeaderDeadText:        "x-bridge-dead-text",
		wire.HeaderDeadVerdict:     "x-bridge-dead-verdict",
		wire.HeaderDeadAt:          "x-bridge-dead-at",
	} {
		if name != want {
			t.Errorf("header %s, want %s", name, want)
		}
	}
}

func TestTheReceiverSeesNoneOfTheBridgesAndTheBrokersHeaders(t *testing.T) {
	staged, err := wire.Encode(bridge.Message{ID: someID, RoutingKey: "q"}, someLedger)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"x-delivery-count", "x-acquired-count", "x-death", "x-first-death-exchange", "x-first-death-queue",
		"x-first-death-reason", "x-last-death-exchange", "x-last-death-queue", "x-last-death-reason",
		wire.HeaderUnroutableSince, wire.HeaderDeadReason, wire.HeaderDeadText,
		wire.HeaderDeadVerdict, wire.HeaderDeadAt, "x-bridge-of-a-later-release",
	} {
		staged.Headers[name] = "x"
	}
	got, err := wire.Parse(delivered(staged))
	if err != nil {
		t.Fatal(err)
	}
	if got.Message.Publishing.Headers != nil {
		t.Errorf("headers %v", got.Message.Publishing.Headers)
	}
}

// A sender in another language may leave the expiration in its place, on a staging queue where
// nothing waits: the receiver still gets it.
func TestAnExpirationInItsOwnPlaceIsKept(t *testing.T) {
	staged, _ := wire.Encode(bridge.Message{ID: someID, RoutingKey: "q"}, someLedger)
	staged.Expiration = "500"
	got, err := wire.Parse(delivered(staged))
	if err != nil || got.Message.Publishing.Expiration != "500" {
		t.Errorf("expiration %q, %v", got.Message.Publishing.Expiration, err)
	}
}

// A priority must not act in the staging queue, and is restored at the target. A priority left in
// its place by an older sender is kept.
func TestAPriorityTravelsAsAHeader(t *testing.T) {
	for _, test := range []struct {
		header any
		own    uint8
		want   uint8
	}{
		{nil, 0, 0}, {nil, 9, 9}, {"255", 0, 255}, {"0", 0, 0}, {"4", 9, 4},
	} {
		staged, _ := wire.Encode(bridge.Message{ID: someID, RoutingKey: "q"}, someLedger)
		staged.Priority = test.own
		if test.header != nil {
			staged.Headers[wire.HeaderPriority] = test.header
		}
		got, err := wire.Parse(delivered(staged))
		if err != nil || got.Message.Publishing.Priority != test.want || got.Message.Publishing.Headers != nil {
			t.Errorf("header %v, property %d: priority %d, want %d (%v)", test.header, test.own, got.Message.Publishing.Priority, test.want, err)
		}
		again := got.Publishing()
		if again.Priority != 0 {
			t.Errorf("header %v, property %d: staged again with priority %d", test.header, test.own, again.Priority)
		}
		same, err := wire.ReadRecord(someLedger, wire.EncodeRecord(again))
		if err != nil || same.Message.Publishing.Priority != test.want {
			t.Errorf("header %v, property %d: priority %d in a record (%v)", test.header, test.own, same.Message.Publishing.Priority, err)
		}
	}
}

func TestAMessageThatCannotBeStagedIsRefused(t *testing.T) {
	long := strings.Repeat("x", 256)
	for _, test := range []struct {
		name   string
		change func(*bridge.Message)
		text   string
	}{
		{"no ID", func(m *bridge.Message) { m.ID = uuid.Nil }, "field ID is zero"},
		{"another message-id", func(m *bridge.Message) { m.Publishing.MessageId = "mine" }, "MessageId differs from ID"},
		{"no target", func(m *bridge.Message) { m.Exchange, m.RoutingKey = "", "" }, "no target"},
		{"long exchange", func(m *bridge.Message) { m.Exchange = long }, "field Exchange has 256 bytes"},
		{"long routing key", func(m *bridge.Message) { m.RoutingKey = long }, "field RoutingKey has 256 bytes"},
		{"long content type", func(m *bridge.Message) { m.Publishing.ContentType = long }, "Publishing.ContentType has 256"},
		{"long content encoding", func(m *bridge.Message) { m.Publishing.ContentEncoding = long }, "Publishing.ContentEncoding has 256"},
		{"long correlation-id", func(m *bridge.Message) { m.Publishing.CorrelationId = long }, "Publishing.CorrelationId has 256"},
		{"long reply-to", func(m *bridge.Message) { m.Publishing.ReplyTo = long }, "Publishing.ReplyTo has 256"},
		{"long type", func(m *bridge.Message) { m.Publishing.Type = long }, "Publishing.Type has 256"},
		{"long user-id", func(m *bridge.Message) { m.Publishing.UserId = long }, "Publishing.UserId has 256"},
		{"long app-id", func(m *bridge.Message) { m.Publishing.AppId = long }, "Publishing.AppId has 256"},
		{"direct reply-to", func(m *bridge.Message) { m.Publishing.ReplyTo = "amq.rabbitmq.reply-to" }, "direct reply-to"},
		{"a target that is a direct reply-to", func(m *bridge.Message) { m.Exchange, m.RoutingKey = "", "amq.rabbitmq.reply-to.g1h2AA" }, "field RoutingKey: a direct reply-to"},
		{"a copy to a direct reply-to", func(m *bridge.Message) {
			m.Exchange, m.Publishing.Headers["CC"] = "", []any{"amq.rabbitmq.reply-to.g1h2AA"}
		}, "header CC or BCC: a direct reply-to"},
		{"reserved header", func(m *bridge.Message) { m.Publishing.Headers["x-bridge-mine"] = "" }, "header x-bridge-mine: names with x-bridge- are reserved"},
		{"long header name", func(m *bridge.Message) { m.Publishing.Headers[long] = "" }, "header name of 256 bytes"},
		{"long header name, nested", func(m *bridge.Message) {
			m.Publishing.Headers["a"] = []any{amqp.Table{"b": amqp.Table{long: ""}}}
		}, "header name of 256 bytes"},
		{"header of a Go type", func(m *bridge.Message) { m.Publishing.Headers["a"] = []string{"b"} }, "value []string not supported"},
		{"expiration in words", func(m *bridge.Message) { m.Publishing.Expiration = "1h" }, `expiration "1h": not a number`},
		{"negative expiration", func(m *bridge.Message) { m.Publishing.Expiration = "-1" }, "not a number of milliseconds"},
		{"expiration over ten years", func(m *bridge.Message) { m.Publishing.Expiration = "315360000001" }, "not a number of milliseconds"},
		{"CC is no list", func(m *bridge.Message) { m.Publishing.Headers["CC"] = "a" }, "header CC: is string, not a list"},
		{"CC is nothing", func(m *bridge.Message) { m.Publishing.Headers["CC"] = nil }, "header CC: is <nil>, not a list"},
		{"BCC of a number", func(m *bridge.Message) { m.Publishing.Headers["BCC"] = []any{"a", 1} }, "header BCC: a routing key must be a string"},
		{"long CC", func(m *bridge.Message) { m.Publishing.Headers["CC"] = []any{long} }, "header CC: a routing key must be"},
		{"long order key", func(m *bridge.Message) { m.OrderKey = long }, "field OrderKey: has 256 bytes"},
		{"NUL in the order key", func(m *bridge.Message) { m.OrderKey = "a\x00" }, "field OrderKey: contains a NUL"},
		{"order key and priority", func(m *bridge.Message) { m.OrderKey, m.Publishing.Priority = "a", 1 }, "field OrderKey: the message has a priority"},
		{"large headers", func(m *bridge.Message) { m.Publishing.Headers["a"] = strings.Repeat("x", 64<<10) }, "at most 65536"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := fullMessage()
			test.change(&m)
			_, err := wire.Encode(m, someLedger)
			if !errors.Is(err, bridge.ErrInvalidMessage) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("error %v, want %q", err, test.text)
			}
			if bridge.Retryable(err) {
				t.Error("is retryable")
			}
		})
	}
}

func TestAMalformedStagedMessageIsRefused(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*amqp.Delivery)
		text   string
	}{
		{"no headers", func(d *amqp.Delivery) { d.Headers = nil }, "header x-bridge-ledger: missing"},
		{"no message-id", func(d *amqp.Delivery) { d.MessageId = "" }, "property message-id: missing"},
		{"message-id of another form", func(d *amqp.Delivery) { d.MessageId = "{" + d.MessageId + "}" }, "property message-id: not a UUID"},
		{"message-id zero", func(d *amqp.Delivery) { d.MessageId = uuid.Nil.String() }, "property message-id: not a UUID"},
		{"no ledger", func(d *amqp.Delivery) { delete(d.Headers, wire.HeaderLedger) }, "header x-bridge-ledger: missing"},
		{"ledger of another form", func(d *amqp.Delivery) { d.Headers[wire.HeaderLedger] = "x" }, "header x-bridge-ledger: not a UUID"},
		{"ledger as bytes", func(d *amqp.Delivery) { d.Headers[wire.HeaderLedger] = someLedger[:] }, "header x-bridge-ledger: is []uint8"},
		{"no exchange", func(d *amqp.Delivery) { delete(d.Headers, wire.HeaderExchange) }, "header x-bridge-exchange: missing"},
		{"exchange as number", func(d *amqp.Delivery) { d.Headers[wire.HeaderExchange] = int32(1) }, "header x-bridge-exchange: is int32"},
		{"long exchange", func(d *amqp.Delivery) { d.Headers[wire.HeaderExchange] = strings.Repeat("x", 256) }, "at most 255 bytes"},
		{"no routing key", func(d *amqp.Delivery) { delete(d.Headers, wire.HeaderRoutingKey) }, "header x-bridge-routing-key: missing"},
		{"no target", func(d *amqp.Delivery) {
			d.Headers[wire.HeaderExchange], d.Headers[wire.HeaderRoutingKey] = "", ""
		}, "no target"},
		{"user-id as number", func(d *amqp.Delivery) { d.Headers[wire.HeaderUserID] = 1 }, "header x-bridge-user-id: is int"},
		{"expiration as number", func(d *amqp.Delivery) { d.Headers[wire.HeaderExpiration] = 1 }, "header x-bridge-expiration: is int"},
		{"expiration in words", func(d *amqp.Delivery) { d.Headers[wire.HeaderExpiration] = "1h" }, "not a number of milliseconds"},
		{"CC in its own place", func(d *amqp.Delivery) { d.Headers["CC"] = []any{"a"} }, "header CC: must travel as x-bridge-cc"},
		{"BCC in its own place", func(d *amqp.Delivery) { d.Headers["BCC"] = []any{"a"} }, "header BCC: must travel as x-bridge-bcc"},
		{"CC is no list", func(d *amqp.Delivery) { d.Headers[wire.HeaderCC] = "a" }, "header CC: is string, not a list"},
		{"BCC is nothing", func(d *amqp.Delivery) { d.Headers[wire.HeaderBCC] = nil }, "header BCC: is <nil>, not a list"},
		{"priority as number", func(d *amqp.Delivery) { d.Headers[wire.HeaderPriority] = int32(1) }, "header x-bridge-priority: is int32"},
		{"priority of 256", func(d *amqp.Delivery) { d.Headers[wire.HeaderPriority] = "256" }, `header x-bridge-priority: "256": not a number`},
		{"no priority", func(d *amqp.Delivery) { d.Headers[wire.HeaderPriority] = "" }, `header x-bridge-priority: "": not a number`},
		{"empty order key", func(d *amqp.Delivery) { delete(d.Headers, wire.HeaderPriority); d.Headers[wire.HeaderOrderKey] = "" }, "header x-bridge-order-key: has 0 bytes"},
		{"long order key", func(d *amqp.Delivery) {
			delete(d.Headers, wire.HeaderPriority)
			d.Headers[wire.HeaderOrderKey] = strings.Repeat("x", 256)
		}, "header x-bridge-order-key: has 256 bytes"},
		{"NUL in the order key", func(d *amqp.Delivery) {
			delete(d.Headers, wire.HeaderPriority)
			d.Headers[wire.HeaderOrderKey] = "a\x00"
		}, "header x-bridge-order-key: contains a NUL"},
		{"order key as number", func(d *amqp.Delivery) { d.Headers[wire.HeaderOrderKey] = int32(1) }, "header x-bridge-order-key: is int32"},
		{"order key and priority", func(d *amqp.Delivery) { d.Headers[wire.HeaderOrderKey] = "a" }, "header x-bridge-order-key: the message has a priority"},
		{"order key and a priority in its own place", func(d *amqp.Delivery) {
			delete(d.Headers, wire.HeaderPriority)
			d.Headers[wire.HeaderOrderKey], d.Priority = "a", 1
		}, "header x-bridge-order-key: the message has a priority"},
		{"large headers", func(d *amqp.Delivery) { d.Headers["a"] = strings.Repeat("x", 64<<10) }, "at most 65536"},
	} {
		t.Run(test.name, func(t *testing.T) {
			staged, err := wire.Encode(fullMessage(), someLedger)
			if err != nil {
				t.Fatal(err)
			}
			d := delivered(staged)
			test.change(&d)
			if _, err := wire.Parse(d); !errors.Is(err, bridge.ErrMalformed) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("error %v, want %q", err, test.text)
			}
		})
	}
}

// Senders in other languages choose the queue in the same way: it must never change.
func TestTheOrderedQueueOfAKeyHasNotChanged(t *testing.T) {
	for _, test := range []struct {
		key    string
		shards int
		want   string
	}{
		{"123456789", 8, "q.ordered.6"}, // CRC-32: 0xcbf43926
		{"123456789", 1, "q.ordered.0"},
		{"123456789", 256, "q.ordered.38"},
		{"\xff\x00", 7, "q.ordered.0"},
	} {
		if got := (bridge.Topology{Queue: "q", OrderedShards: test.shards}).OrderedQueueOf(test.key); got != test.want {
			t.Errorf("key %q of %d: %s, want %s", test.key, test.shards, got, test.want)
		}
	}
}

// The staging time of a message is the time in its ID, unless a header has another.
func TestTheTimeOfStagingSurvivesBeingStagedAgain(t *testing.T) {
	own := time.UnixMilli(1795202071161)
	for _, test := range []struct {
		id     uuid.UUID
		header any
		want   time.Time
	}{
		{someID, nil, time.UnixMilli(0x019200000000)},
		{someID, own.UnixMilli(), own},
		{uuid.MustParse("0a000000-0000-4000-8000-000000000001"), nil, time.Time{}},
		{uuid.MustParse("0a000000-0000-4000-8000-000000000001"), own.UnixMilli(), own},
		{uuid.MustParse("0a000000-0000-4000-8000-000000000001"), "no number", time.Time{}},
	} {
		m := fullMessage()
		m.ID = test.id
		staged, err := wire.Encode(m, someLedger)
		if err != nil {
			t.Fatal(err)
		}
		if test.header != nil {
			staged.Headers[wire.HeaderStagedAt] = test.header
		}
		parsed, err := wire.Parse(delivered(staged))
		if err != nil || !parsed.StagedAt.Equal(test.want) {
			t.Errorf("%s, header %v: staged at %v, want %v (%v)", test.id, test.header, parsed.StagedAt, test.want, err)
		}
		again, err := wire.Parse(delivered(parsed.Publishing()))
		if err != nil || !again.StagedAt.Equal(test.want) {
			t.Errorf("%s, header %v: staged again at %v, want %v (%v)", test.id, test.header, again.StagedAt, test.want, err)
		}
	}
}

func TestTheTimeOfAnIDIsTheUUIDv7Time(t *testing.T) {
	before := time.Now().Truncate(time.Millisecond)
	if at := wire.MadeAt(uuid.Must(uuid.NewV7())); at.Before(before) || at.After(time.Now()) {
		t.Errorf("made at %v, is %v", at, time.Now())
	}
	// RFC 9562, appendix A.6
	if at := wire.MadeAt(uuid.MustParse("017f22e2-79b0-7cc3-98c4-dc0c0c07398f")); at.UnixMilli() != 1645557742000 {
		t.Errorf("made at %v", at)
	}
	if at := wire.MadeAt(uuid.New()); !at.IsZero() {
		t.Errorf("a UUIDv4 was made at %v", at)
	}
}
