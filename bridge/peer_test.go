package bridge

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A peerConn is a connection on the side of a peer. The peer speaks enough AMQP for a Broker to
// publish, and grants every open.
type peerConn struct {
	net.Conn
	writing sync.Mutex
	declare func() method // answers a declaration of a queue
	mute    [2]uint16     // the class and number of a method without an answer
}

// A peerMessage was published, and waits for its confirm, return or refusal.
type peerMessage struct {
	conn    *peerConn
	channel uint16
	tag     uint64
	missing int // bytes of the body still to come
	body    []byte
}

// A method has its class, its number and its arguments.
type method struct {
	class, number uint16
	arguments     string
}

// answers maps the class and number of a method to the peer's answer.
var answers = map[[2]uint16]method{
	{10, 11}: {10, 30, "\x00\x00\x00\x08\x00\x00\x00\x00"}, // start-ok: tune to frames of 512 KiB without heartbeats
	{10, 40}: {10, 41, "\x00"},                             // open
	{10, 50}: {10, 51, ""},                                 // close
	{20, 10}: {20, 11, "\x00\x00\x00\x00"},                 // open a channel
	{20, 40}: {20, 41, ""},                                 // close it
	{60, 20}: {60, 21, "\x01c"},                            // consume
	{85, 10}: {85, 11, ""},                                 // confirm
}

// serve speaks to one client until the client leaves, or until on, called for each message, returns
// that nothing more is read.
func (c *peerConn) serve(on func(peerMessage) bool) {
	const methodFrame, headerFrame, bodyFrame, heartbeatFrame, headSize = 1, 2, 3, 8, 7
	if _, err := io.ReadFull(c, make([]byte, len("AMQP0091"))); err != nil {
		return
	}
	c.say(0, method{10, 10, "\x00\x09" + "\x00\x00\x00\x00" + "\x00\x00\x00\x05PLAIN" + "\x00\x00\x00\x05en_US"}) // start
	messages := make(map[uint16]*peerMessage)                                                                     // the last one of each channel
	for {
		head := make([]byte, headSize) // type, channel, size
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		channel := binary.BigEndian.Uint16(head[1:])
		payload := make([]byte, binary.BigEndian.Uint32(head[3:])+1)
		if _, err := io.ReadFull(c, payload); err != nil {
			return
		}
		payload = payload[:len(payload)-1]
		m := messages[channel]
		if m == nil {
			m = &peerMessage{conn: c, channel: channel}
			messages[channel] = m
		}
		switch head[0] {
		case heartbeatFrame:
			c.write([]byte{heartbeatFrame, 0, 0, 0, 0, 0, 0, frameEnd})
			continue
		case methodFrame:
			asked := [2]uint16{binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:])}
			if asked == c.mute {
				continue
			}
			if answer, ok := answers[asked]; ok {
				c.say(channel, answer)
			} else if asked == [2]uint16{50, 10} {
				answer := c.declare()
				if answer.class == 10 { // the end of the connection
					channel = 0
				}
				c.say(channel, answer)
			}
			continue
		case headerFrame:
			m.tag++
			m.missing, m.body = int(binary.BigEndian.Uint64(payload[4:])), nil
		case bodyFrame:
			m.missing -= len(payload)
			m.body = append(m.body, payload...)
		}
		if m.missing == 0 && !on(*m) {
			return
		}
	}
}

// say sends a method. Its error does not matter: then the client has gone.
func (c *peerConn) say(channel uint16, m method) {
	const methodFrame = 1
	frame := binary.BigEndian.AppendUint16([]byte{methodFrame}, channel)
	frame = binary.BigEndian.AppendUint32(frame, uint32(4+len(m.arguments)))
	frame = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(frame, m.class), m.number)
	c.write(append(append(frame, m.arguments...), frameEnd))
}

const frameEnd = 0xCE

func (c *peerConn) write(frame []byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	_, _ = c.Write(frame)
}

// confirm acks the message.
func (m peerMessage) confirm() {
	m.conn.say(m.channel, method{60, 80, string(binary.BigEndian.AppendUint64(nil, m.tag)) + "\x00"})
}

// refuse closes the message's channel, as a broker does for a message that is too large.
func (m peerMessage) refuse() {
	const preconditionFailed = "\x01\x96" // 406
	m.conn.say(m.channel, method{20, 40, preconditionFailed + "\x07refused" + "\x00\x3c" + "\x00\x28"})
}

// A peer is the only server of a Broker, over a pipe: unless the peer reads, nothing moves.
type peer struct {
	dials   atomic.Int32
	on      func() func(peerMessage) bool // returns the argument of serve, for each connection
	declare func() method
	mute    [2]uint16
	opened  chan *peerConn // gets each connection, if it is not nil
}

// broker returns a Broker of the peer; its connections fail if the peer is nil.
func (p *peer) broker(t *testing.T, opts BrokerOptions) *Broker {
	t.Helper()
	opts.Logger = slog.New(slog.DiscardHandler)
	b, err := NewBroker("amqp://peer/?heartbeat=3600", &opts) // a peer may be silent for as long as a test takes
	if err != nil {
		t.Fatal(err)
	}
	b.dial = func(context.Context, string, string) (net.Conn, error) {
		if p == nil {
			return nil, errors.New("no peer")
		}
		p.dials.Add(1)
		near, far := net.Pipe()
		conn := &peerConn{Conn: far, declare: p.declare, mute: p.mute}
		go conn.serve(p.on())
		if p.opened != nil {
			p.opened <- conn
		}
		return near, nil
	}
	t.Cleanup(b.Close)
	return b
}

// A script is the behaviour of a peer that acts by itself.
type script struct {
	confirms int    // how many messages it confirms
	blocks   string // its reason for taking nothing after the first message
	reads    int    // the number of messages after which it stops reading; 0: none
}

// peer returns a peer that follows the script; without a script, nil.
func (s *script) peer() *peer {
	if s == nil {
		return nil
	}
	return &peer{on: func() func(peerMessage) bool {
		published := 0
		return func(m peerMessage) bool {
			if published++; published <= s.confirms {
				m.confirm()
			}
			if published == 1 && s.blocks != "" {
				m.conn.say(0, method{10, 60, string(rune(len(s.blocks))) + s.blocks}) // blocked
			}
			return s.reads == 0 || published < s.reads
		}
	}}
}

const peerPatience = 2 * time.Minute

// A scriptedPeer lets the test decide about each message.
type scriptedPeer struct {
	peer
	t         *testing.T
	published chan peerMessage
}

func newScriptedPeer(t *testing.T) *scriptedPeer {
	p := &scriptedPeer{t: t, published: make(chan peerMessage)}
	p.on = func() func(peerMessage) bool {
		return func(m peerMessage) bool {
			select {
			case p.published <- m:
				return true
			case <-t.Context().Done():
				return false
			}
		}
	}
	return p
}

// next returns the next published message.
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
