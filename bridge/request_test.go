package bridge

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A broker may answer heartbeats and not a request: a queue without a majority, a frozen node behind
// a proxy. The request must end with an error that names it, and the next connection must begin at
// another address.
func TestARequestWithoutAnAnswerEndsTheConnection(t *testing.T) {
	declared := func() method { return method{50, 11, "\x01q" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00"} }
	for name, test := range map[string]struct {
		mute    [2]uint16
		request func(*Connection) error
		names   string
	}{
		"open a channel":  {[2]uint16{20, 10}, func(c *Connection) error { _, err := c.Channel(); return err }, "open channel"},
		"publish":         {[2]uint16{85, 10}, func(c *Connection) error { _, err := c.Publisher(1); return err }, "open publishing channel"},
		"declare a queue": {[2]uint16{50, 10}, func(c *Connection) error { return QuorumQueue("q", "").Declare(c) }, `queue "q"`},
		"close a channel": {[2]uint16{20, 40}, func(c *Connection) error {
			if err := QuorumQueue("q", "").Declare(c); err != nil {
				return err
			}
			return QuorumQueue("next", "").Declare(c)
		}, `queue "next"`},
		"declare an exchange": {[2]uint16{40, 10}, func(c *Connection) error {
			return Topology{Queue: "q", Exchange: "e"}.DeclareExchange(c)
		}, `exchange "e"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newScriptedPeer(t)
				p.mute, p.declare = test.mute, declared
				b := p.broker(t, BrokerOptions{})
				conn, err := b.Connect(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				address, began := b.rotation.at.Load(), time.Now()
				err = test.request(conn)
				if took := time.Since(began); took != answerPatience {
					t.Errorf("it took %v", took)
				}
				if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), test.names) || !strings.Contains(err.Error(), "no answer from the broker at peer") {
					t.Errorf("the error is %v", err)
				}
				<-conn.Done()
				if err := conn.Err(); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "no answer") {
					t.Errorf("the connection ended with %v", err)
				}
				if b.rotation.at.Load() == address {
					t.Error("the next connection begins at the same address")
				}
			})
		})
	}
}

// During an alarm RabbitMQ reads nothing from a connection that publishes, and answers afterwards.
func TestABlockedConnectionMayAnswerLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newScriptedPeer(t)
		p.opened = make(chan *peerConn, 1)
		conn, err := p.broker(t, BrokerOptions{}).Connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		far := <-p.opened
		far.say(0, method{10, 60, "\x05alarm"}) // blocked
		synctest.Wait()
		time.AfterFunc(time.Hour, func() { far.say(0, method{10, 61, ""}) }) // unblocked
		if err := conn.Request(func() error { time.Sleep(time.Hour + answerPatience/2); return nil }); err != nil || conn.Err() != nil {
			t.Errorf("the request ended with %v, the connection with %v", err, conn.Err())
		}
		began := time.Now()
		err = conn.Request(func() error { <-conn.Done(); return errors.New("ended") })
		if took := time.Since(began); took != answerPatience || !errors.Is(err, ErrUnavailable) {
			t.Errorf("without an alarm, after %v: %v", took, err)
		}
	})
}

// A setting of the broker that refuses a request for good must be named: the operator changes it.
func TestARefusalNamesTheSettingOfTheBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScriptedPeer(t).broker(t, BrokerOptions{})
		b.url += "&channel_max=1"
		conn, err := b.Connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Channel(); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Channel(); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "may have 1 channels: raise channel_max") {
			t.Errorf("with too few channels: %v", err)
		}
	})
	err := connectError(t.Context(), "peer:5672", amqp.ErrSASL)
	if !errors.Is(err, ErrCredentials) || !strings.Contains(err.Error(), "auth_mechanisms") || strings.Contains(err.Error(), "password") {
		t.Errorf("without a common mechanism: %v", err)
	}
}

// connectTo connects to a peer, and returns the peer's side of the connection too. between may wrap
// both sides.
func connectTo(t *testing.T, mute [2]uint16, between func(near, far net.Conn) (net.Conn, net.Conn)) (*Connection, *peerConn) {
	t.Helper()
	var peer *peerConn
	conn, err := connect(t.Context(), func(context.Context, string, string) (net.Conn, error) {
		near, far := between(net.Pipe())
		peer = &peerConn{Conn: far, mute: mute}
		go peer.serve(func(peerMessage) bool { return true })
		return near, nil
	}, "amqp://peer/?heartbeat=10", "", nil, slog.New(slog.DiscardHandler), func() {})
	if err != nil {
		t.Fatal(err)
	}
	return conn, peer
}

// A broker that freezes just when it has granted the connection counts as lost as soon as heartbeats
// are missing. The library alone would wait without a bound.
func TestABrokerThatFreezesAfterTheHandshakeIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, _ := connectTo(t, [2]uint16{}, func(near, far net.Conn) (net.Conn, net.Conn) {
			return lateDeadline{near}, &freezing{Conn: far}
		})
		began := time.Now()
		select {
		case <-conn.Done():
		case <-time.After(time.Hour):
			t.Fatal("the connection counts as alive")
		}
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// A lateDeadline sets both deadlines a moment late. The library clears them at the end of the
// handshake, while another goroutine sets the one for reading.
type lateDeadline struct{ net.Conn }

func (d lateDeadline) SetDeadline(at time.Time) error {
	time.Sleep(time.Millisecond)
	return d.Conn.SetDeadline(at)
}

// A freezing connection loses everything behind the grant of a virtual host.
type freezing struct {
	net.Conn
	frozen atomic.Bool
}

func (f *freezing) Write(b []byte) (int, error) {
	if f.frozen.Load() {
		return len(b), nil
	}
	openOK := []byte{0, 10, 0, 41}
	f.frozen.Store(bytes.Contains(b, openOK))
	return f.Conn.Write(b)
}

// Each frame from the broker moves the library's deadline for the end of the connection on.
func TestCloseWaitsForNoAnswerWhileHeartbeatsCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closeMethod := [2]uint16{10, 50}
		conn, peer := connectTo(t, closeMethod, func(near, far net.Conn) (net.Conn, net.Conn) { return near, far })
		var beats sync.WaitGroup
		defer beats.Wait()
		beats.Go(func() {
			heartbeat := []byte{8, 0, 0, 0, 0, 0, 0, frameEnd}
			for conn.Err() == nil {
				peer.write(heartbeat)
				time.Sleep(time.Second)
			}
		})
		began := time.Now()
		conn.Close()
		if took := time.Since(began); took > closePatience+lastRead+lastWrite {
			t.Errorf("it took %v", took)
		}
	})
}
