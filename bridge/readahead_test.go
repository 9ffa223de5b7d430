package bridge

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// frame returns one frame as a broker sends it.
func frame(kind byte, payload []byte) []byte {
	f := binary.BigEndian.AppendUint32([]byte{kind, 0, 1}, uint32(len(payload)))
	return append(append(f, payload...), frameEnd)
}

// sent returns a message as a broker sends it, with its body in frames of a size.
func sent(body []byte, size int) []byte {
	frames := append(frame(1, []byte("deliver")), frame(2, []byte("header"))...)
	for part := range slices.Chunk(body, size) {
		frames = append(frames, frame(3, part)...)
	}
	return frames
}

const inAll = 100

// A sendingBroker sends a number of messages, and counts the messages that the other side has read.
type sendingBroker struct {
	ahead *readAhead
	read  atomic.Int32
}

func newSendingBroker(t *testing.T, limit int, body []byte) *sendingBroker {
	near, far := net.Pipe() // without a buffer: written bytes have been read
	b := &sendingBroker{ahead: newReadAhead(near, slog.New(slog.DiscardHandler))}
	b.ahead.bound(limit)
	message := sent(body, 300)
	go func() {
		for ; b.read.Load() < inAll; b.read.Add(1) {
			if _, err := far.Write(message); err != nil {
				return
			}
		}
	}()
	go io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{b.ahead}, make([]byte, len(message)))
	t.Cleanup(func() { _ = b.ahead.Close() })
	return b
}

func (b *sendingBroker) expect(t *testing.T, when string, read int) {
	t.Helper()
	synctest.Wait()
	if got := int(b.read.Load()); got != read {
		t.Fatalf("%s: %d messages were read, want %d", when, got, read)
	}
}

func TestAConnectionReadsABoundedAmountAheadOfItsReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 400
		b := newSendingBroker(t, 1000, make([]byte, size))
		c := &Connection{ahead: b.ahead}
		d := amqp.Delivery{Body: make([]byte, size)}
		b.expect(t, "at first", 3)
		c.Received(d)
		b.expect(t, "one was received", 4)
		c.Received(d)
		c.Received(d)
		b.expect(t, "three were received", 6)

		time.Sleep(readAheadPatience - 1)
		b.expect(t, "nothing is received", 6)
		time.Sleep(time.Nanosecond)
		b.expect(t, "nothing is received for long", 9)
		for range 6 { // three of them are no longer counted
			c.Received(d)
		}
		b.expect(t, "all were received", 12)

		c.BoundReadAhead(2000)
		b.expect(t, "it counts anew", 18)
		c.BoundReadAhead(1000)
		for range 6 {
			c.Received(d)
		}
		b.expect(t, "all messages read before are received", 21)

		defer b.ahead.end(readAheadPatience / 2)()
		b.expect(t, "it is to end soon", 21)
		time.Sleep(readAheadPatience / 2)
		b.expect(t, "it ends", inAll)
	})
}

func TestAConnectionReadsAMessageThatIsLargerThanItsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSendingBroker(t, 1000, make([]byte, 5000))
		b.expect(t, "at first", 1)
		b.ahead.received(5000)
		b.expect(t, "it was received", 2)
	})
}

// The library reads the end of a message and the beginning of the next at once. The first can be
// received only after the library has both.
func TestAReaderWhoseMessagesAreReceivedAtOnceNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, messages = 10_000, 50
		for _, size := range []int{1, 3000, 9000, 11_000, 40_000} {
			near, far := net.Pipe()
			r := newReadAhead(near, slog.New(slog.DiscardHandler))
			r.bound(limit)
			go func() {
				stream := bytes.Repeat(sent(make([]byte, size), 4000), messages)
				for part := range slices.Chunk(stream, 700) { // parts end anywhere in a message
					_, _ = far.Write(part)
				}
				_ = far.Close()
			}()
			began := time.Now()
			received, missing := 0, size
			library := bufio.NewReader(struct{ io.Reader }{r}) // 4 KiB at once
			for head := make([]byte, 7); ; {
				if _, err := io.ReadFull(library, head); err != nil {
					break
				}
				length := int(binary.BigEndian.Uint32(head[3:]))
				_, _ = io.CopyN(io.Discard, library, int64(length+1))
				if head[0] != 3 {
					continue
				}
				if missing -= length; missing == 0 {
					r.received(size)
					received, missing = received+1, size
				}
			}
			if took := time.Since(began); received != messages || took != 0 {
				t.Errorf("of %d bytes each: %d of %d messages, it waited %v", size, received, messages, took)
			}
		}
	})
}

// Reads may end anywhere in a message.
func TestBodiesAreCountedHoweverTheyAreRead(t *testing.T) {
	var stream []byte
	want := 0
	for n := range 200 {
		body := make([]byte, rand.IntN(100))
		stream = append(stream, sent(body, 1+rand.IntN(50))...)
		stream = append(stream, frame(8, nil)...) // a heartbeat
		if want += len(body); n%50 == 0 {
			stream = append(stream, frame(3, nil)...)
		}
	}
	for range 100 {
		var f frames
		var read []byte
		got, begin := 0, 0
		for rest := stream; len(rest) > 0; {
			n := min(1+rand.IntN(40), len(rest))
			var bodies int
			var begins bool
			read, bodies, begins = f.follow(read, rest[:n])
			if got += bodies; begins {
				begin++
			}
			rest = rest[n:]
		}
		if got != want || begin == 0 || begin > 200 || !bytes.Equal(read, stream) {
			t.Fatalf("%d bytes of bodies, want %d; methods in %d reads; %d of %d bytes are read", got, want, begin, len(read), len(stream))
		}
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(sent([]byte("body"), 3), 5)
	f.Add([]byte("AMQP\x00\x00\x09\x01"), 1)
	f.Add([]byte("\x03\x00\x01\xff\xff\xff\xff"), 7)
	f.Add(append(frame(2, append(make([]byte, 12), "\x20\x00\x00\x00\x00\x03\x01a?"...)), frame(3, []byte("body"))...), 12)
	f.Fuzz(func(t *testing.T, stream []byte, cut int) {
		var whole, cuts frames
		read, bodies, begins := whole.follow(nil, stream)
		if bodies < 0 || bodies > len(read) {
			t.Errorf("%d bytes of bodies in %d bytes", bodies, len(read))
		}
		cut = min(max(0, cut), len(stream))
		parts, first, begin1 := cuts.follow(nil, stream[:cut])
		parts, second, begin2 := cuts.follow(parts, stream[cut:])
		if first+second != bodies || (begin1 || begin2) != begins || !bytes.Equal(parts, read) {
			t.Errorf("cut at %d: %d+%d bytes of %d", cut, first, second, bodies)
		}
	})
}
