package bridge

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"
)

const peerPatience = 2 * time.Minute

// A scriptedPeer speaks as much of AMQP as a Broker needs to publish, and leaves it to the
// test to say what becomes of each message.
type scriptedPeer struct {
	t         *testing.T
	listener  net.Listener
	accepted  chan *peerConn
	published chan peerMessage
	ended     chan struct{} // closed when the test ends
	serving   sync.WaitGroup
}

// A peerConn is one connection, on the peer's side.
type peerConn struct {
	net.Conn
	writing sync.Mutex
}

// A peerMessage was published and waits for its confirm.
type peerMessage struct {
	conn    *peerConn
	channel uint16
	tag     uint64
	body    string
}

func newScriptedPeer(t *testing.T) *scriptedPeer {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &scriptedPeer{t: t, listener: listener, accepted: make(chan *peerConn, 100), published: make(chan peerMessage), ended: make(chan struct{})}
	p.serving.Go(p.accept)
	t.Cleanup(func() {
		close(p.ended)
		_ = listener.Close()
		p.serving.Wait()
	})
	return p
}

// broker is one whose only server is the peer. It is closed before the peer.
func (p *scriptedPeer) broker(opts BrokerOptions) *Broker {
	p.t.Helper()
	opts.Logger = slog.New(slog.DiscardHandler)
	b, err := NewBroker("amqp://"+p.listener.Addr().String()+"/", &opts)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(b.Close)
	return b
}

// next is the next message that was published.
func (p *scriptedPeer) next() peerMessage {
	p.t.Helper()
	select {
	case m := <-p.published:
		return m
	case <-time.After(peerPatience):
		p.t.Fatal("nothing was published")
		return peerMessage{}
	}
}

func (p *scriptedPeer) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		c := &peerConn{Conn: conn}
		p.accepted <- c
		p.serving.Go(func() {
			defer conn.Close()
			p.serve(c)
		})
	}
}

// serve answers until the client leaves.
func (p *scriptedPeer) serve(c *peerConn) {
	in := bufio.NewReader(c)
	if _, err := in.Discard(len("AMQP0091")); err != nil {
		return
	}
	c.method(0, 10, 10, "\x00\x09"+long("")+long("PLAIN")+long("en_US")) // connection.start
	messages := make(map[uint16]*peerMessage)                            // that come in, by channel
	for {
		kind, channel, payload, err := readFrame(in)
		if err != nil {
			return
		}
		const methodFrame, bodyFrame, heartbeatFrame = 1, 3, 8
		switch m := messages[channel]; {
		case kind == heartbeatFrame:
			c.write([]byte{heartbeatFrame, 0, 0, 0, 0, 0, 0, 0xce})
		case kind == bodyFrame:
			m.body += string(payload)
			select {
			case p.published <- *m:
			case <-p.ended:
				return
			}
		case kind == methodFrame:
			switch class, method := binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:]); [2]uint16{class, method} {
			case [...]uint16{10, 11}: // start-ok
				c.method(0, 10, 30, "\x07\xff"+"\x00\x02\x00\x00"+"\x00\x00") // tune: 2047 channels, frames of 128 KiB
			case [...]uint16{10, 40}: // connection.open
				c.method(0, 10, 41, "\x00")
			case [...]uint16{10, 50}: // connection.close
				c.method(0, 10, 51, "")
			case [...]uint16{20, 10}: // channel.open
				messages[channel] = &peerMessage{conn: c, channel: channel}
				c.method(channel, 20, 11, long(""))
			case [...]uint16{85, 10}: // confirm.select
				c.method(channel, 85, 11, "")
			case [...]uint16{60, 40}: // basic.publish
				m.tag++
				m.body = ""
			}
		}
	}
}

// confirm says that the broker has it.
func (m peerMessage) confirm() {
	m.conn.method(m.channel, 60, 80, string(binary.BigEndian.AppendUint64(nil, m.tag))+"\x00")
}

// refuse closes the message's channel, as a broker does if it is too large.
func (m peerMessage) refuse() {
	const preconditionFailed = "\x01\x96" // 406
	m.conn.method(m.channel, 20, 40, preconditionFailed+"\x07refused"+"\x00\x3c"+"\x00\x28")
}

// method sends one. What cannot be written, nobody waits for any more.
func (c *peerConn) method(channel, class, method uint16, arguments string) {
	frame := binary.BigEndian.AppendUint16([]byte{1}, channel)
	frame = binary.BigEndian.AppendUint32(frame, uint32(4+len(arguments)))
	frame = binary.BigEndian.AppendUint16(frame, class)
	frame = binary.BigEndian.AppendUint16(frame, method)
	c.write(append(append(frame, arguments...), 0xce))
}

func (c *peerConn) write(frame []byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	_, _ = c.Write(frame)
}

// long is a string or an empty table, with its length.
func long(value string) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(value)))) + value
}

func readFrame(in io.Reader) (kind byte, channel uint16, payload []byte, err error) {
	head := make([]byte, 7)
	if _, err := io.ReadFull(in, head); err != nil {
		return 0, 0, nil, err
	}
	payload = make([]byte, binary.BigEndian.Uint32(head[3:])+1)
	if _, err := io.ReadFull(in, payload); err != nil {
		return 0, 0, nil, err
	}
	if end := payload[len(payload)-1]; end != 0xce {
		return 0, 0, nil, fmt.Errorf("a frame ends with %#x", end)
	}
	return head[0], binary.BigEndian.Uint16(head[1:]), payload[:len(payload)-1], nil
}
