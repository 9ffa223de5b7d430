package servertest_test

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

const limit = servertest.Patience

func TestMain(m *testing.M) { servertest.Main(m) }

// echo starts a server that sends a greeting and then returns its input.
func echo(t *testing.T, greeting string) string {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				_, _ = io.WriteString(conn, greeting)
				_, _ = io.Copy(conn, conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	return listener.Addr().String()
}

// call connects and reads the greeting, if it is not empty.
func call(t *testing.T, valve *servertest.Valve, greeting string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp4", valve.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	expect(t, conn, greeting)
	return conn
}

// pair returns a valve with both ends of one connection through it.
func pair(t *testing.T) (valve *servertest.Valve, client, server net.Conn) {
	t.Helper()
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_ = listener.SetDeadline(time.Now().Add(limit))
	valve = servertest.NewValve(t, listener.Addr().String())
	client = call(t, valve, "")
	if server, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return valve, client, server
}

func expect(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(limit))
	got := make([]byte, len(want))
	if n, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v; want %q", got[:n], err, want)
	}
}

func say(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

// expectSilence checks that nothing arrives for a moment, not even the end.
func expectSilence(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d bytes, %v, out of a black hole", n, err)
	}
}

// expectEnd checks that the connection ends without another byte.
func expectEnd(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(limit))
	if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d bytes, %v; want the end", n, err)
	}
}

func TestValveHoldsAndReleases(t *testing.T) {
	valve, client, server := pair(t)
	valve.HoldReplies()
	say(t, client, "request")
	expect(t, server, "request")
	say(t, server, "reply")
	expectSilence(t, client)
	valve.Release()
	expect(t, client, "reply")
	valve.HoldRequests()
	say(t, client, "request")
	expectSilence(t, server)
	valve.Cut()
	expectEnd(t, client)
	expectEnd(t, server)
}

func TestValveVanishesUntilItIsReleased(t *testing.T) {
	valve := servertest.NewValve(t, echo(t, "hello"))
	before := call(t, valve, "hello")
	valve.Vanish()
	say(t, before, "lost")
	expectSilence(t, before)
	during := call(t, valve, "")
	expectSilence(t, during)
	valve.Release()
	expectEnd(t, before)
	expectEnd(t, during)
	after := call(t, valve, "hello")
	say(t, after, "again")
	expect(t, after, "again")
}

func TestValveTearsInTheMiddle(t *testing.T) {
	valve, client, server := pair(t)
	say(t, client, "whole ")
	expect(t, server, "whole ")
	valve.Tear()
	say(t, client, "12345678")
	expect(t, server, "1234")
	expectEnd(t, server)
	expectEnd(t, client)
}

func TestValveSlowsDownAndLosesNothing(t *testing.T) {
	const delay = 50 * time.Millisecond
	valve := servertest.NewValve(t, echo(t, "hello"))
	conn := call(t, valve, "hello")
	valve.Slow(delay)
	began := time.Now()
	say(t, conn, "slow")
	expect(t, conn, "slow")
	if took := time.Since(began); took < 2*delay {
		t.Errorf("there and back took %v, less than twice %v", took, delay)
	}
}

func TestValveBeforeSeveralServersTakesTurnsAmongTheAnsweringOnes(t *testing.T) {
	first, second := echo(t, "first "), echo(t, "second")
	gone, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := gone.Addr().String()
	_ = gone.Close()
	valve := servertest.NewValve(t, first, address, second)
	for _, want := range []string{"first ", "second", "second", "first "} {
		call(t, valve, want)
	}
}

func TestValveLeadsToOtherServers(t *testing.T) {
	first, second := echo(t, "first "), echo(t, "second")
	valve := servertest.NewValve(t, first)
	before := call(t, valve, "first ")
	valve.Lead(second, first)
	say(t, before, "stays")
	expect(t, before, "stays")
	valve.Lead(second)
	expectEnd(t, before)
	for range 2 {
		call(t, valve, "second")
	}
}
