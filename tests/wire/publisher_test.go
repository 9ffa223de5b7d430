package wire_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// reportChecker checks the reports of a publisher.
type reportChecker struct {
	t       *testing.T
	ctx     context.Context
	running sync.WaitGroup
}

func newReportChecker(t *testing.T) *reportChecker {
	return &reportChecker{t: t, ctx: within(t, patience)}
}

func (v *reportChecker) publish(p *bridge.Publisher, queue, id string, want error) {
	v.running.Add(1)
	err := p.Publish(v.ctx, bridge.Target{RoutingKey: queue}, amqp.Publishing{MessageId: id}, func(err error) {
		if !errors.Is(err, want) {
			v.t.Errorf("message %s to %s: %v, want %v", id, queue, err, want)
		}
		v.running.Done()
	})
	if err != nil {
		v.t.Errorf("publish message %s: %v", id, err)
		v.running.Done()
	}
}

// wait waits for all reports.
func (v *reportChecker) wait() {
	v.t.Helper()
	await(v.t, "all reports", &v.running)
}

func publisher(t *testing.T, conn *bridge.Connection, inFlight int) *bridge.Publisher {
	t.Helper()
	p, err := conn.Publisher(inFlight)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Some goroutines share a channel with many messages in flight. A few messages find no queue, and
// exactly these must be reported as returned, although the broker confirms them too.
func TestExactlyTheReturnedMessageIsBlamed(t *testing.T) {
	t.Parallel()
	vhost := servertest.Vhost(t)
	declare(t, vhost, "here", nil)
	p := publisher(t, connect(t, dial(t, vhost, nil)), 4096)
	v := newReportChecker(t)
	var publishing sync.WaitGroup
	for g := range 8 {
		publishing.Go(func() {
			for i := range 300 {
				id := fmt.Sprintf("%d-%d", g, i)
				if rand.IntN(30) == 0 {
					v.publish(p, "nowhere", id, bridge.ErrReturned)
				} else {
					v.publish(p, "here", id, nil)
				}
			}
		})
	}
	publishing.Wait()
	v.wait()
}

// A full queue nacks at once, and a quorum queue confirms later. The broker's multiple ack for
// the late confirms then spans the nacked messages. (The library's NotifyPublish reports them as
// acked.)
func TestExactlyTheNackedMessageIsBlamed(t *testing.T) {
	t.Parallel()
	vhost := servertest.Vhost(t)
	declare(t, vhost, "slow", amqp.Table{"x-queue-type": "quorum"})
	declare(t, vhost, "full", amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
	p := publisher(t, connect(t, dial(t, vhost, nil)), 1024)
	v := newReportChecker(t)
	for i := range 1000 {
		if i%7 == 3 {
			v.publish(p, "full", fmt.Sprint(i), bridge.ErrNacked)
		} else {
			v.publish(p, "slow", fmt.Sprint(i), nil)
		}
	}
	v.wait()
	if n := depth(t, vhost, "full"); n != 0 {
		t.Errorf("the full queue took %d messages", n)
	}
}

// The library's reader waits five seconds for a listener that does not receive, and then discards
// its notification. So while a report blocks, there must be room for the reports of all messages
// in flight: the reader reaches the confirm of another channel at once, and no report is missing
// when the blocked one returns.
func TestABlockedReportLosesNothing(t *testing.T) {
	t.Parallel()
	const inFlight = 50
	vhost := servertest.Vhost(t)
	conn := connect(t, dial(t, vhost, nil))
	p := publisher(t, conn, inFlight)
	blocked, release := make(chan struct{}), make(chan struct{})
	if err := p.Publish(t.Context(), bridge.Target{RoutingKey: "nowhere"}, amqp.Publishing{MessageId: "first"}, func(err error) {
		if !errors.Is(err, bridge.ErrReturned) {
			t.Errorf("first message: %v", err)
		}
		close(blocked)
		<-release
	}); err != nil {
		t.Fatal(err)
	}
	servertest.Next(t, "the first report", blocked)
	v := newReportChecker(t)
	for i := range inFlight - 1 {
		v.publish(p, "nowhere", fmt.Sprint(i), bridge.ErrReturned)
	}
	full, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Publish(full, bridge.Target{RoutingKey: "nowhere"}, amqp.Publishing{}, func(error) {}); !errors.Is(err, bridge.ErrUnavailable) {
		t.Errorf("one more than may be in flight: %v", err)
	}
	other := publisher(t, conn, 1)
	done := make(chan error, 1)
	if err := other.Publish(t.Context(), bridge.Target{RoutingKey: "nowhere"}, amqp.Publishing{}, func(err error) { done <- err }); err != nil {
		t.Fatal(err)
	}
	if err := servertest.Next(t, "the reader goes on", done); !errors.Is(err, bridge.ErrReturned) {
		t.Error(err)
	}
	close(release)
	v.wait()
}

// Messages that were confirmed before the channel closed are confirmed. All others are
// unconfirmed, with the broker's reason. Each is reported once.
func TestARefusalLeavesTheRestUnconfirmed(t *testing.T) {
	t.Parallel()
	vhost := servertest.Vhost(t)
	declare(t, vhost, "q", nil)
	broker := dial(t, vhost, nil)
	for name, test := range map[string]struct {
		target bridge.Target
		url    string
		code   int
	}{
		"missing exchange":  {bridge.Target{Exchange: "missing", RoutingKey: "k"}, vhost, amqp.NotFound},
		"no right":          {bridge.Target{RoutingKey: "q"}, servertest.User(t, vhost, "", "^$", ""), amqp.AccessRefused},
		"internal exchange": {bridge.Target{Exchange: "internal", RoutingKey: "k"}, vhost, amqp.AccessRefused},
	} {
		t.Run(name, func(t *testing.T) {
			internal := true
			if err := channel(t, vhost).ExchangeDeclare("internal", "fanout", true, false, internal, false, nil); err != nil {
				t.Fatal(err)
			}
			conn := connect(t, dial(t, test.url, nil))
			if test.url == vhost {
				conn = connect(t, broker)
			}
			p := publisher(t, conn, 1000)
			confirmed := make(chan error, 1)
			if err := p.Publish(t.Context(), bridge.Target{RoutingKey: "nowhere"}, amqp.Publishing{}, func(err error) { confirmed <- err }); err == nil {
				_ = servertest.Next(t, "the first report", confirmed)
			}
			const n = 100
			reports := make(chan error, n)
			sent := 0
			for range n {
				err := p.Publish(t.Context(), test.target, amqp.Publishing{}, func(err error) { reports <- err })
				if err != nil {
					if !errors.Is(err, bridge.ErrUnavailable) {
						t.Fatalf("publish after the end: %v", err)
					}
					break
				}
				sent++
			}
			servertest.Next(t, "the channel's end", p.Done())
			for range sent {
				err := servertest.Next(t, "a report", reports)
				if !errors.Is(err, bridge.ErrUnconfirmed) || !errors.Is(err, bridge.ErrUnavailable) {
					t.Fatalf("reported %v", err)
				}
				if refusal := bridge.Refusal(err); refusal == nil || refusal.Code != test.code {
					t.Fatalf("refusal %v of %v", refusal, err)
				}
			}
			if refusal := bridge.Refusal(p.Err()); refusal == nil || refusal.Code != test.code {
				t.Errorf("error of the publisher %v", p.Err())
			}
			if err := p.Publish(t.Context(), test.target, amqp.Publishing{}, nil); !errors.Is(err, bridge.ErrUnavailable) {
				t.Errorf("publish afterwards: %v", err)
			}
			if conn.Err() != nil {
				t.Errorf("the connection is over too: %v", conn.Err())
			}
		})
	}
}

// A message to which the library or the broker would react by closing the connection is refused
// before it is sent.
func TestAMessageThatWouldEndTheConnectionIsNotSent(t *testing.T) {
	t.Parallel()
	vhost := servertest.Vhost(t)
	declare(t, vhost, "q", nil)
	conn := connect(t, dial(t, vhost, nil))
	p := publisher(t, conn, 10)
	long := strings.Repeat("x", 256)
	for name, m := range map[string]bridge.Outgoing{
		"exchange":      {Target: bridge.Target{Exchange: long}},
		"routing key":   {Target: bridge.Target{RoutingKey: long}},
		"message-id":    {Publishing: amqp.Publishing{MessageId: long}},
		"content type":  {Publishing: amqp.Publishing{ContentType: long}},
		"expiration":    {Publishing: amqp.Publishing{Expiration: long}},
		"header name":   {Publishing: amqp.Publishing{Headers: amqp.Table{long: ""}}},
		"header type":   {Publishing: amqp.Publishing{Headers: amqp.Table{"a": struct{}{}}}},
		"large headers": {Publishing: amqp.Publishing{Headers: amqp.Table{"a": strings.Repeat("x", 128<<10)}}},
		"many headers":  {Publishing: amqp.Publishing{Headers: amqp.Table{"a": make([]any, 128<<10)}}},
	} {
		err := p.Publish(t.Context(), m.Target, m.Publishing, func(error) { t.Errorf("%s: reported", name) })
		if !errors.Is(err, bridge.ErrInvalidMessage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	v := newReportChecker(t)
	v.publish(p, "q", "good", nil)
	v.wait()
}

// The largest headers that are accepted fit into a frame.
func TestTheLargestHeadersGetThrough(t *testing.T) {
	t.Parallel()
	vhost := servertest.Vhost(t)
	declare(t, vhost, "q", nil)
	p := publisher(t, connect(t, dial(t, vhost, nil)), 10)
	short := strings.Repeat("s", 255)
	msg := amqp.Publishing{
		ContentType: short, ContentEncoding: short, CorrelationId: short, ReplyTo: short, Expiration: "4294967295",
		MessageId: short, Type: short, AppId: short, Priority: 1, DeliveryMode: amqp.Persistent,
	}
	refused := func(size int) bool {
		msg.Headers = amqp.Table{"h": strings.Repeat("x", size)}
		reported := make(chan error, 1)
		err := p.Publish(t.Context(), bridge.Target{RoutingKey: "q"}, msg, func(err error) { reported <- err })
		if errors.Is(err, bridge.ErrInvalidMessage) {
			return true
		}
		if err == nil {
			err = servertest.Next(t, "a report", reported)
		}
		if err != nil {
			t.Fatalf("headers of %d bytes: %v", size, err)
		}
		return false
	}
	// The largest accepted size is found: one byte more is refused.
	if size := sort.Search(128<<10, refused); size < 120<<10 {
		t.Errorf("only %d bytes are accepted", size-1)
	}
}
