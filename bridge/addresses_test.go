package bridge

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestAURLMayHaveSeveralAddresses(t *testing.T) {
	for address, want := range map[string][]string{
		"amqp://u:p@a:1,b:2/v?heartbeat=5":     {"a:1", "b:2"},
		"amqps://u:p%2C@a,b/":                  {"a:5671", "b:5671"},
		"amqp://u:p@[::1]:5672,[2001:db8::1]/": {"::1:5672", "2001:db8::1:5672"},
		"amqp://a":                             {"a:5672"},
	} {
		uris, err := ParseURL(address)
		var got []string
		for _, uri := range uris {
			got = append(got, uri.Host+":"+strconv.Itoa(uri.Port))
			if uri.Vhost != uris[0].Vhost || uri.Password != uris[0].Password || uri.Heartbeat != uris[0].Heartbeat {
				t.Errorf("%s: differ: %+v", address, uri)
			}
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", address, got, err)
		}
	}
	for _, address := range []string{
		"amqp://u:secret@a:1,/v", "amqp://u:secret@,a:1/v", "amqp://u:secret@a:1,,b/v", "amqp://u:secret@a:1,b:x/v",
		"amqp://u:secret@a:1, b:2/v", "amqp://u:sec,ret/@a:1,b:2/v",
	} {
		if _, err := ParseURL(address); !errors.Is(err, ErrURL) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", address, err)
		}
		if b, err := NewBroker(address, nil); err == nil {
			b.Close()
			t.Errorf("%s: taken", address)
		}
	}
}

// A cluster answers by address: as a peer, with silence, or with an error.
type cluster struct {
	mu     sync.Mutex
	nodes  map[string]string // the state of each: serves, frozen or down
	dialed []string
	conns  map[string][]net.Conn
}

func (c *cluster) dial(ctx context.Context, _, address string) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dialed = append(c.dialed, address)
	near, far := net.Pipe()
	c.conns[address] = append(c.conns[address], far)
	switch c.nodes[address] {
	case "serves":
		go (&peerConn{Conn: far}).serve(func(peerMessage) bool { return true })
	case "frozen":
		go func() { _, _ = io.Copy(io.Discard, far) }()
	default:
		return nil, errors.New("connection refused")
	}
	return near, nil
}

func (c *cluster) set(node, does string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[node] = does
}

func newCluster(t *testing.T, opts BrokerOptions) (*cluster, *Broker) {
	c := &cluster{nodes: map[string]string{"a:5672": "serves", "b:5672": "serves", "c:5672": "serves"}, conns: map[string][]net.Conn{}}
	opts.Logger = slog.New(slog.DiscardHandler)
	b, err := NewBroker("amqp://u:secret@a,b,c/?heartbeat=3600", &opts)
	if err != nil {
		t.Fatal(err)
	}
	b.dial = c.dial
	b.rotation.at.Store(0)
	t.Cleanup(b.Close)
	return c, b
}

// A frozen node costs seconds, once. A node that is down costs no time.
func TestAFrozenNodeCostsSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, timeout := range []time.Duration{10 * time.Second, time.Minute} {
			c, b := newCluster(t, BrokerOptions{DialTimeout: timeout})
			c.set("a:5672", "frozen")
			c.set("b:5672", "down")
			connect := func(within time.Duration, want ...string) *Connection {
				t.Helper()
				c.dialed = nil
				began := time.Now()
				conn, err := b.Connect(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > within || !slices.Equal(c.dialed, want) {
					t.Errorf("took %v, by way of %v; want %v by way of %v", took, c.dialed, within, want)
				}
				return conn
			}
			first := connect(addressPatience+lastWrite, "a:5672", "b:5672", "c:5672")
			connect(0, "c:5672").Close()
			c.set("a:5672", "serves")
			connect(0, "c:5672").Close() // the rotation stays there, although a serves again
			for _, conn := range c.conns["c:5672"] {
				_ = conn.Close() // the node dies
			}
			<-first.Done()
			connect(0, "a:5672").Close()
		}
	})
}

func TestAllAddressesAreNamedWhenNoneConnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 9 * time.Second
		c, b := newCluster(t, BrokerOptions{DialTimeout: timeout})
		c.nodes = map[string]string{"a:5672": "frozen", "c:5672": "frozen"}
		began := time.Now()
		_, err := b.Connect(t.Context())
		if took := time.Since(began); took > timeout+3*lastWrite {
			t.Errorf("took %v", took)
		}
		if !errors.Is(err, ErrUnavailable) || !Retryable(err) || strings.Contains(err.Error(), "secret") {
			t.Errorf("error: %v", err)
		}
		for _, address := range []string{"a:5672", "b:5672", "c:5672"} {
			if !strings.Contains(err.Error(), "at "+address+": ") {
				t.Errorf("does not name %s: %v", address, err)
			}
		}
	})
}

func TestClientsSpreadOverTheAddresses(t *testing.T) {
	first := map[uint64]bool{}
	for range 200 {
		first[newRotation().at.Load()%3] = true
	}
	if len(first) != 3 {
		t.Errorf("begins at %v only", first)
	}
}

// BrokerOptions.URL may return another password and other addresses each time; while it fails, the
// broker is unavailable.
func TestTheURLIsReadAnewForEachConnection(t *testing.T) {
	c := &cluster{nodes: map[string]string{"a:5672": "serves", "b:5672": "serves"}, conns: map[string][]net.Conn{}}
	text, failure := "amqp://u:old@a/", error(nil)
	b, err := NewBroker("", &BrokerOptions{Logger: slog.New(slog.DiscardHandler), URL: func(context.Context) (string, error) { return text, failure }})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	b.dial = c.dial
	for _, test := range []struct {
		text    string
		failure error
		want    error
	}{
		{"amqp://u:old@a/", nil, nil}, {"amqp://u:new@b/", nil, nil}, {"", errors.New("no file"), ErrUnavailable}, {"amqp:secret", nil, ErrURL},
	} {
		text, failure = test.text, test.failure
		conn, err := b.Connect(t.Context())
		if !errors.Is(err, test.want) || err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", test.text, err)
		}
		if err == nil {
			conn.Close()
		}
	}
	if !slices.Equal(c.dialed, []string{"a:5672", "b:5672"}) {
		t.Errorf("dialed %v", c.dialed)
	}
}
