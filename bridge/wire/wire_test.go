package wire_test

import (
	"errors"
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

// Other releases and operators' tools read these names: they must never change. The vectors have the
// names that senders write.
func TestTheNamesOfHeadersHaveNotChanged(t *testing.T) {
	for name, want := range map[string]string{
		wire.HeaderUnroutableSince: "x-bridge-unroutable-since",
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

// A priority must not act in the staging queue, even if an older sender has left it in its place.
func TestAPriorityIsStagedAgainAsAHeader(t *testing.T) {
	for header, own := range map[string]uint8{"": 9, "255": 0, "4": 9} {
		staged, _ := wire.Encode(bridge.Message{ID: someID, RoutingKey: "q"}, someLedger)
		staged.Priority = own
		if header != "" {
			staged.Headers[wire.HeaderPriority] = header
		}
		got, err := wire.Parse(delivered(staged))
		if err != nil {
			t.Fatal(err)
		}
		again := got.Publishing()
		same, err := wire.ReadRecord(someLedger, wire.EncodeRecord(again))
		if want := got.Message.Publishing.Priority; err != nil || again.Priority != 0 || want == 0 || same.Message.Publishing.Priority != want {
			t.Errorf("header %q, property %d: staged again with priority %d, in a record %d, want %d (%v)",
				header, own, again.Priority, same.Message.Publishing.Priority, want, err)
		}
	}
}

// The vectors have the messages that every sender refuses. These errors name the field of Go's
// message, and no retry helps.
func TestARefusalNamesTheField(t *testing.T) {
	long := strings.Repeat("x", 256)
	for text, change := range map[string]func(*bridge.Message){
		"field ID is zero":                      func(m *bridge.Message) { m.ID = uuid.Nil },
		"field Exchange has 256 bytes":          func(m *bridge.Message) { m.Exchange = long },
		"field RoutingKey has 256 bytes":        func(m *bridge.Message) { m.RoutingKey = long },
		"field OrderKey: has 256 bytes":         func(m *bridge.Message) { m.OrderKey = long },
		"Publishing.ContentType has 256":        func(m *bridge.Message) { m.Publishing.ContentType = long },
		"Publishing.ContentEncoding has 256":    func(m *bridge.Message) { m.Publishing.ContentEncoding = long },
		"Publishing.CorrelationId has 256":      func(m *bridge.Message) { m.Publishing.CorrelationId = long },
		"Publishing.ReplyTo has 256":            func(m *bridge.Message) { m.Publishing.ReplyTo = long },
		"Publishing.Type has 256":               func(m *bridge.Message) { m.Publishing.Type = long },
		"Publishing.UserId has 256":             func(m *bridge.Message) { m.Publishing.UserId = long },
		"Publishing.AppId has 256":              func(m *bridge.Message) { m.Publishing.AppId = long },
		"header x-bridge-mine: names with":      func(m *bridge.Message) { m.Publishing.Headers["x-bridge-mine"] = "" },
		"value []string not supported":          func(m *bridge.Message) { m.Publishing.Headers["a"] = []string{"b"} },
		"header CC: is <nil>, not a list":       func(m *bridge.Message) { m.Publishing.Headers["CC"] = nil },
		"header BCC: a routing key must be a s": func(m *bridge.Message) { m.Publishing.Headers["BCC"] = []any{"a", 1} },
		"header CC or BCC: a direct reply-to": func(m *bridge.Message) {
			m.Exchange, m.Publishing.Headers["CC"] = "", []any{"amq.rabbitmq.reply-to.g1h2AA"}
		},
	} {
		m := fullMessage()
		change(&m)
		_, err := wire.Encode(m, someLedger)
		if !errors.Is(err, bridge.ErrInvalidMessage) || !strings.Contains(err.Error(), text) || bridge.Retryable(err) {
			t.Errorf("error %v, retryable %t, want %q", err, bridge.Retryable(err), text)
		}
	}
}

// The vectors have the other malformed messages.
func TestAMalformedStagedMessageIsRefused(t *testing.T) {
	for text, change := range map[string]func(*amqp.Delivery){
		"header x-bridge-ledger: missing":            func(d *amqp.Delivery) { d.Headers = nil },
		"header x-bridge-ledger: is []uint8":         func(d *amqp.Delivery) { d.Headers[wire.HeaderLedger] = someLedger[:] },
		"header BCC: is <nil>, not a list":           func(d *amqp.Delivery) { d.Headers[wire.HeaderBCC] = nil },
		`header x-bridge-priority: "": not a number`: func(d *amqp.Delivery) { d.Headers[wire.HeaderPriority] = "" },
	} {
		staged, err := wire.Encode(fullMessage(), someLedger)
		if err != nil {
			t.Fatal(err)
		}
		d := delivered(staged)
		change(&d)
		if _, err := wire.Parse(d); !errors.Is(err, bridge.ErrMalformed) || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want %q", err, text)
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
