package bridge

import (
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A peer is a broker that follows a script. It opens whatever it is asked to open.
type peer struct {
	confirms int    // how many messages it confirms
	blocks   string // its reason for taking nothing after the first message
	reads    int    // after so many messages it reads nothing more; 0: it reads on
}

// A method has its class, its number and its arguments.
type method struct {
	class, number uint16
	arguments     string
}

// answers are those of a peer to the methods of a class and a number.
var answers = map[[2]uint16]method{
	{10, 11}: {10, 30, "\x00\x00\x00\x08\x00\x00\x00\x00"}, // start-ok: tune to frames of 512 KiB without heartbeats
	{10, 40}: {10, 41, "\x00"},                             // open
	{10, 50}: {10, 51, ""},                                 // close
	{20, 10}: {20, 11, "\x00\x00\x00\x00"},                 // open a channel
	{85, 10}: {85, 11, ""},                                 // confirm
}

// serve speaks to one client until it leaves.
func (p peer) serve(conn net.Conn) {
	const methodFrame, headerFrame, bodyFrame, headSize, end = 1, 2, 3, 7, 0xCE
	say := func(channel uint16, m method) {
		frame := binary.BigEndian.AppendUint16([]byte{methodFrame}, channel)
		frame = binary.BigEndian.AppendUint32(frame, uint32(4+len(m.arguments)))
		frame = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(frame, m.class), m.number)
		_, _ = conn.Write(append(append(frame, m.arguments...), end))
	}
	if _, err := io.ReadFull(conn, make([]byte, len("AMQP0091"))); err != nil {
		return
	}
	say(0, method{10, 10, "\x00\x09" + "\x00\x00\x00\x00" + "\x00\x00\x00\x05PLAIN" + "\x00\x00\x00\x05en_US"}) // start
	for published, missing := 0, 0; p.reads == 0 || published < p.reads; {
		head := make([]byte, headSize) // type, channel, size
		if _, err := io.ReadFull(conn, head); err != nil {
			return
		}
		channel := binary.BigEndian.Uint16(head[1:])
		payload := make([]byte, binary.BigEndian.Uint32(head[3:])+1)
		if _, err := io.ReadFull(conn, payload); err != nil {
			return
		}
		switch head[0] {
		case methodFrame:
			if answer, ok := answers[[2]uint16{binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:])}]; ok {
				say(channel, answer)
			}
			continue
		case headerFrame:
			missing = int(binary.BigEndian.Uint64(payload[4:]))
		case bodyFrame:
			missing -= len(payload) - 1
		}
		if missing > 0 {
			continue
		}
		if published++; published <= p.confirms {
			say(channel, method{60, 80, string(binary.BigEndian.AppendUint64(nil, uint64(published))) + "\x00"}) // ack
		}
		if published == 1 && p.blocks != "" {
			say(0, method{10, 60, string(rune(len(p.blocks))) + p.blocks}) // blocked
		}
	}
}

// brokerOf is a Broker that is linked to the peer over one channel, and makes no other link.
func brokerOf(t *testing.T, p peer) *Broker {
	t.Helper()
	near, far := net.Pipe() // no buffer: the peer reads, or nothing moves
	t.Cleanup(func() { _ = far.Close() })
	go p.serve(far)
	c := &Connection{burst: newBurstConn(near), done: make(chan struct{}), open: make(chan struct{})}
	close(c.open)
	var err error
	c.conn, err = amqp.Open(c.burst, amqp.Config{SASL: []amqp.Authentication{&amqp.PlainAuth{}}, Vhost: "/", Locale: "en_US"})
	if err != nil {
		t.Fatal(err)
	}
	go c.watch(c.conn.NotifyBlocked(make(chan amqp.Blocking, 4)), c.conn.NotifyClose(make(chan *amqp.Error, 1)))
	t.Cleanup(c.Close)
	publisher, err := c.Publisher(100)
	if err != nil {
		t.Fatal(err)
	}
	b := brokerOfNobody(t)
	b.once.Do(func() {})
	b.up = &link{publishers: []*Publisher{publisher}, gone: make(chan struct{})}
	return b
}

// brokerOfNobody is a Broker at whose address nobody listens.
func brokerOfNobody(t *testing.T) *Broker {
	t.Helper()
	b, err := NewBroker("amqp://127.0.0.1:1/", &BrokerOptions{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}
