package bridge

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/internal/unreadable"
)

// A deliverer is a peer that delivers the test's messages to a consumer.
type deliverer struct {
	t          *testing.T
	conn       *Connection
	peer       *peerConn
	deliveries <-chan amqp.Delivery
	tag        uint64
}

func newDeliverer(t *testing.T) *deliverer {
	conns := make(chan *peerConn, 1)
	p := &peer{on: func() func(peerMessage) bool { return func(peerMessage) bool { return true } }, opened: conns}
	conn, err := p.broker(t, BrokerOptions{}).Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	deliveries, err := ch.Consume("q", "c", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &deliverer{t: t, conn: conn, peer: <-conns, deliveries: deliveries}
}

// deliver delivers a message with these encoded properties: flags and values.
func (d *deliverer) deliver(properties, body []byte) amqp.Delivery {
	d.t.Helper()
	d.tag++
	deliver := append([]byte{0, 60, 0, 60, 1, 'c'}, binary.BigEndian.AppendUint64(nil, d.tag)...)
	content := binary.BigEndian.AppendUint64([]byte{0, 60, 0, 0}, uint64(len(body)))
	stream := append(frame(1, append(deliver, 0, 1, 'e', 1, 'k')), frame(2, append(content, properties...))...)
	for part := range slices.Chunk(body, 100_000) {
		stream = append(stream, frame(3, part)...)
	}
	d.peer.write(stream)
	select {
	case got, ok := <-d.deliveries:
		if !ok {
			d.t.Fatalf("the connection has ended (%v) by properties %q", d.conn.Err(), properties[:min(200, len(properties))])
		}
		if got.DeliveryTag != d.tag || got.RoutingKey != "k" {
			d.t.Fatalf("delivery %d with key %q, want %d", got.DeliveryTag, got.RoutingKey, d.tag)
		}
		return got
	case <-time.After(peerPatience):
		d.t.Fatal("nothing was received")
		panic("unreachable")
	}
}

// check delivers a message, which must arrive unchanged or as its record, and a good one after it.
func (d *deliverer) check(properties, body []byte) (replaced bool) {
	d.t.Helper()
	got := d.deliver(properties, body)
	_, replaced = got.Headers[unreadable.Header]
	if want := recordOf(properties, body); replaced && got.Headers[unreadable.RecordHeader] != nil && !bytes.Equal(got.Body, want) {
		d.t.Fatalf("the record has %d bytes, want %d", len(got.Body), len(want))
	} else if !replaced && !bytes.Equal(got.Body, body) {
		d.t.Fatalf("the body has %d bytes, want %d", len(got.Body), len(body))
	}
	if good := d.deliver([]byte("\x00\x80\x02id"), []byte("good")); good.MessageId != "id" || string(good.Body) != "good" {
		d.t.Fatalf("behind it: %+v", good)
	}
	return replaced
}

func recordOf(properties, body []byte) []byte {
	record := append(binary.BigEndian.AppendUint32(nil, uint32(len(properties))), properties...)
	return append(binary.BigEndian.AppendUint32(record, uint32(len(body))), body...)
}

// headersOf returns properties with one header, "h", of an encoded value, and the message ID.
func headersOf(value string) []byte {
	table := "\x01h" + value
	return append(binary.BigEndian.AppendUint32([]byte{0x20, 0x80}, uint32(len(table))), table+"\x02id"...)
}

// nested is a list in a list in a list ...
func nested(depth int) (value string) {
	for range depth {
		value = "A" + string(binary.BigEndian.AppendUint32(nil, uint32(len(value)))) + value
	}
	return value
}

func list(elements int) string {
	return "A" + string(binary.BigEndian.AppendUint32(nil, uint32(elements))) + strings.Repeat("V", elements)
}

func text(size int) string {
	return "S" + string(binary.BigEndian.AppendUint32(nil, uint32(size))) + strings.Repeat("x", size)
}

// No content header ends the connection. A message that the library can read arrives unchanged.
func TestAnUnreadableContentHeaderEndsNoConnection(t *testing.T) {
	d := newDeliverer(t)
	largest := 131_072 - 8 - 12 - len(headersOf(text(0))) // a frame, its own fields, class, weight and size of the body
	for name, test := range map[string]struct {
		properties []byte
		replaced   bool
		why        string
	}{
		"none":                      {[]byte{0, 0}, false, ""},
		"32 lists":                  {headersOf(nested(32)), false, ""},
		"33 lists":                  {headersOf(nested(33)), true, `message "id" cannot be read: tables and lists are nested more than 32 deep`},
		"thousands of lists":        {headersOf(nested(20_000)), true, "32 deep"},
		"8192 elements":             {headersOf(list(8192)), false, ""},
		"8193 elements":             {headersOf(list(8193)), true, "more than 8192 elements"},
		"an unknown type":           {headersOf("?"), true, "unknown type 0x3f"},
		"a string that is cut off":  {headersOf("S\x00\x00\x00\x09abc"), true, "cut off"},
		"a length of 4 GiB":         {headersOf("x\xff\xff\xff\xff"), true, "cut off"},
		"a table that is cut off":   {[]byte("\x20\x00\x00\x00\x00\x09\x01h"), true, "cut off"},
		"a message ID cut off":      {[]byte("\x00\x80\x09id"), true, "cut off"},
		"no flags":                  {nil, true, "cut off"},
		"as large as a frame":       {headersOf(text(largest)), false, ""},
		"larger than a frame":       {headersOf(text(largest + 1)), true, "more than a frame of this connection, 131072"},
		"much larger than a frame":  {headersOf(text(1 << 20)), true, "more than a frame"},
		"bytes behind the last one": {[]byte("\x00\x80\x02idxyz"), false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d.t = t
			for _, body := range [][]byte{nil, []byte("body"), make([]byte, 300_000)} {
				if replaced := d.check(test.properties, body); replaced != test.replaced {
					t.Errorf("replaced: %v", replaced)
				}
			}
			if test.replaced {
				got := d.deliver(test.properties, nil)
				if why, _ := got.Headers[unreadable.Header].(string); !strings.Contains(why, test.why) || got.MessageId != "" ||
					got.ContentType != unreadable.ContentType {
					t.Errorf("delivered %q with %q", got.Headers, got.ContentType)
				}
			}
		})
	}
}

// A returned message is not taken for confirmed, even if the library cannot read the return.
func TestAnUnreadableReturnIsAReturn(t *testing.T) {
	p := newScriptedPeer(t)
	b := p.broker(t, BrokerOptions{})
	done := make(chan error, 1)
	messages := outgoing(1, 1)
	go func() { done <- b.Publish(t.Context(), messages) }()
	m := p.next()
	id, to := messages[0].MessageId, messages[0].Target
	table := "\x01h" + nested(40)
	properties := append(binary.BigEndian.AppendUint32([]byte{0x20, 0x80}, uint32(len(table))), table...)
	properties = append(append(properties, byte(len(id))), id...)
	args := append([]byte{0, 60, 0, 50, 1, 56, 1, 'r', byte(len(to.Exchange))}, to.Exchange...)
	args = append(append(args, byte(len(to.RoutingKey))), to.RoutingKey...)
	stream := append(frame(1, args), frame(2, append(binary.BigEndian.AppendUint64([]byte{0, 60, 0, 0}, 0), properties...))...)
	for i := 0; i < len(stream); i += 7 + 1 + int(binary.BigEndian.Uint32(stream[i+3:])) {
		binary.BigEndian.PutUint16(stream[i+1:], m.channel)
	}
	m.conn.write(stream)
	m.confirm()
	if err := <-done; !errors.Is(err, ErrReturned) {
		t.Errorf("the error is %v", err)
	}
}

// randomProperties returns the properties of a good message, with some bytes changed.
func randomProperties(r *rand.Rand) []byte {
	value := func() string {
		switch r.IntN(8) {
		case 0:
			return nested(r.IntN(50))
		case 1:
			return "S\x00\x00\x00\x03abc"
		case 2:
			return "F\x00\x00\x00\x07\x01aI\x00\x00\x00\x01"
		case 3:
			return "T\x00\x00\x00\x00\x00\x00\x00\x01"
		case 4:
			return list(r.IntN(10_000))
		case 5:
			return "D\x01\x00\x00\x00\x01"
		}
		return fmt.Sprintf("%cabcdefgh", rune(r.IntN(128)))
	}
	properties := headersOf(value())
	if r.IntN(2) == 0 { // and all other flags
		properties[0], properties[1] = 0xff, byte(r.IntN(256))
		properties = append([]byte{properties[0], properties[1], 1, 'c', 1, 'e'}, properties[2:]...)
		for range r.IntN(40) {
			properties = append(properties, byte(r.IntN(6)))
		}
	}
	for range r.IntN(4) {
		properties[r.IntN(len(properties))] ^= 1 << r.IntN(8)
	}
	return properties[:len(properties)-r.IntN(2)*r.IntN(len(properties))]
}

func TestRandomContentHeadersEndNoConnection(t *testing.T) {
	d := newDeliverer(t)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	replaced := 0
	const messages = 5000
	for range messages {
		if d.check(randomProperties(r), []byte("body")) {
			replaced++
		}
	}
	if t.Logf("seed %d: %d of %d became records", seed, replaced, messages); replaced == 0 || replaced == messages {
		t.Error("the test shows nothing")
	}
}

func FuzzContentHeader(f *testing.F) {
	for _, value := range []string{nested(3), nested(40), list(9000), "?", "S\x00\x00\x00\x09abc"} {
		f.Add(headersOf(value))
	}
	f.Fuzz(func(t *testing.T, properties []byte) {
		if len(properties) > 1<<20 {
			return
		}
		newDeliverer(t).check(properties, []byte("body"))
	})
}
