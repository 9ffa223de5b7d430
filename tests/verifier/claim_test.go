package verifier_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// Verifiers of two databases on one staging queue would dead-letter each other's messages. The
// second one refuses to start while the first runs.
func TestAQueueOfAnotherLedgersVerifiersIsRefused(t *testing.T) {
	t.Parallel()
	vhost := servertest.Vhost(t)
	topology := bridge.Topology{Queue: "staging"}
	s, other := stage.On(t, stage.Postgres, vhost, topology), stage.On(t, stage.Postgres, vhost, topology)
	first, second := s.Verify(verifier.Options{}), s.Verify(verifier.Options{}) // of one ledger

	v, err := verifier.New(other.Ledger, other.Broker, &verifier.Options{Topology: topology, Logger: stage.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	refused := func() {
		t.Helper()
		ended := make(chan error, 1)
		go func() { ended <- v.Run(t.Context()) }()
		s.Eventually("it refuses, or begins", func() bool { return len(ended) > 0 || v.Stats().Sessions > 0 })
		if v.Stats().Sessions > 0 {
			t.Fatal("it has begun")
		}
		err := <-ended
		// The broker truncates its text, which contains the other ledger only if virtual host and
		// queue have short names.
		if !errors.Is(err, bridge.ErrOtherLedger) || !strings.Contains(err.Error(), other.Ledger.Identity().String()) {
			t.Errorf("Run returned %v", err)
		}
	}
	refused()
	first.Stop()
	refused() // the second one holds the queue
	// The ledger queue needs no messages. If a client publishes some, no verifier stops.
	queue := s.Queue("target", nil)
	for range 100 {
		if err := s.Channel.PublishWithContext(t.Context(), "", topology.LedgerQueue(), false, false, amqp.Publishing{Body: make([]byte, 100_000)}); err != nil {
			t.Fatal(err)
		}
	}
	expectAll(t, s, queue, goodBatch(s, queue, 20))
	second.Stop()
	other.Verify(verifier.Options{}).Stop()
}

// A broker without classic queues answers the declaration of the ledger queue with an internal error.
// The same error with another cause must not let a verifier of another ledger begin.
func TestAnInternalErrorHidesNoVerifierOfAnotherLedger(t *testing.T) {
	t.Parallel()
	vhost := servertest.Vhost(t)
	topology := bridge.Topology{Queue: "staging"}
	s := stage.On(t, stage.Postgres, vhost, topology)
	first := s.Verify(verifier.Options{})
	failing := &failingDeclarations{queue: topology.LedgerQueue()}
	other := stage.On(t, stage.Postgres, failing.between(t, vhost), topology)
	v, err := verifier.New(other.Ledger, other.Broker, &verifier.Options{Topology: topology, Logger: stage.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	for _, failures := range []int32{1, 1000} {
		failing.left.Store(failures)
		ended := make(chan error, 1)
		go func() { ended <- v.Run(t.Context()) }()
		s.Eventually("it refuses, or begins", func() bool { return len(ended) > 0 || v.Stats().Sessions > 0 })
		if v.Stats().Sessions > 0 {
			t.Fatalf("it has begun after up to %d internal errors", failures)
		}
		if err := <-ended; errors.Is(err, bridge.ErrOtherLedger) != (failures == 1) {
			t.Errorf("after up to %d internal errors Run returned %v", failures, err)
		}
	}
	first.Stop()
	other.Verify(verifier.Options{}).Stop() // nothing holds the queue
	if failing.left.Load() == 1000 {
		t.Error("no declaration has failed")
	}
}

// failingDeclarations is a proxy that answers declarations of a queue with an internal error, which
// ends the connection.
type failingDeclarations struct {
	queue string
	left  atomic.Int32 // declarations that are still to fail
}

// between returns the URL of the proxy in front of a broker.
func (f *failingDeclarations) between(t *testing.T, address string) string {
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	broker := u.Host
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go f.serve(client, broker)
		}
	}()
	u.Host = listener.Addr().String()
	return u.String()
}

func (f *failingDeclarations) serve(client net.Conn, address string) {
	defer client.Close()
	broker, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer broker.Close()
	go func() {
		_, _ = io.Copy(client, broker)
		_ = client.Close()
	}()
	if _, err := io.CopyN(broker, client, int64(len("AMQP0091"))); err != nil {
		return
	}
	for {
		frame := make([]byte, 7) // type, channel, size
		if _, err := io.ReadFull(client, frame); err != nil {
			return
		}
		payload := make([]byte, binary.BigEndian.Uint32(frame[3:])+1)
		if _, err := io.ReadFull(client, payload); err != nil {
			return
		}
		if f.declares(payload) && f.left.Add(-1) >= 0 {
			_, _ = client.Write([]byte("\x01\x00\x00\x00\x00\x00\x12" + "\x00\x0a\x00\x32" + "\x02\x1d" + "\x07failing" + "\x00\x32\x00\x0a" + "\xce"))
			_, _ = io.Copy(io.Discard, client)
			return
		}
		if _, err := broker.Write(append(frame, payload...)); err != nil {
			return
		}
	}
}

// declares reports whether a frame's payload declares the queue, and not passively.
func (f *failingDeclarations) declares(payload []byte) bool {
	const head = "\x00\x32\x00\x0a" + "\x00\x00" // class, method, reserved
	name := head + string(rune(len(f.queue))) + f.queue
	rest, is := strings.CutPrefix(string(payload), name)
	return is && rest[0]&1 == 0
}
