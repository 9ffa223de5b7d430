package wire_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// unescaped returns m staged by a sender without escapes: with the three required headers, and
// all properties unchanged.
func unescaped(t *testing.T, s *stage.Stage, m bridge.Message) (bridge.Target, amqp.Publishing) {
	t.Helper()
	p := m.Publishing
	p.MessageId = uuid.NewString()
	headers := amqp.Table{
		wire.HeaderLedger:     s.Ledger.Identity().String(),
		wire.HeaderExchange:   m.Exchange,
		wire.HeaderRoutingKey: m.RoutingKey,
	}
	for name, value := range p.Headers {
		headers[name] = value
	}
	p.Headers = headers
	return bridge.Target{RoutingKey: s.Topology.Queue}, p
}

// publish publishes one message and waits for its confirm or error.
func publish(t *testing.T, url string, to bridge.Target, p amqp.Publishing) error {
	t.Helper()
	verdict := make(chan error, 1)
	pub := publisher(t, connect(t, dial(t, url, nil)), 1)
	if err := pub.Publish(t.Context(), to, p, func(err error) { verdict <- err }); err != nil {
		return err
	}
	return servertest.Next(t, "the verdict", verdict)
}

func TestAMessageWithATTLShorterThanItsTransactionArrives(t *testing.T) {
	t.Parallel()
	const ttl = "300"
	s := stage.New(t, stage.Postgres)
	m := stage.To(s.Queue("target", nil), "body")
	m.Publishing.Expiration = ttl
	arrived, stop := s.Consume("target")
	defer stop()

	tx, ids := s.Begin(m)
	// Without the escape it expires in a queue of the same kind, although it was published later.
	_, p := unescaped(t, s, m)
	if err := publish(t, s.AMQP, bridge.Target{RoutingKey: s.Topology.WaitingQueue()}, p); err != nil {
		t.Fatal(err)
	}
	dead := s.Receive(s.Topology.DeadQueue(), 1)[0]
	if dead.MessageId != p.MessageId || dead.Headers["x-first-death-reason"] != "expired" {
		t.Errorf("message %s in the dead queue with headers %v", dead.MessageId, dead.Headers)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	s.Verify(verifier.Options{})
	// The verifier restores the expiration.
	if d := servertest.Next(t, "the message", arrived); d.MessageId != ids[0].String() || d.Expiration != ttl {
		t.Errorf("message %s arrived with expiration %q", d.MessageId, d.Expiration)
	}
	if n := s.Depth(s.Topology.DeadQueue()); n != 0 {
		t.Errorf("%d messages in the dead queue", n)
	}
}

func TestNoCopyLeavesBeforeTheCommit(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	for _, queue := range []string{"target", "copy", "blind"} {
		s.Queue(queue, nil)
	}
	m := stage.To("target", "body")
	m.Publishing.Headers = amqp.Table{"CC": []any{"copy"}, "BCC": []any{"blind"}}
	depths := func() [2]int { return [2]int{s.Depth("copy"), s.Depth("blind")} }

	// Without the escape the copies are delivered at once.
	to, p := unescaped(t, s, m)
	if err := publish(t, s.AMQP, to, p); err != nil {
		t.Fatal(err)
	}
	if got := depths(); got != [2]int{1, 1} {
		t.Fatalf("copies %v of an unescaped message", got)
	}
	s.Receive("copy", 1)
	s.Receive("blind", 1)
	s.Receive(s.Topology.Queue, 1)

	tx, ids := s.Begin(m)
	v := s.Verify(verifier.Options{})
	s.Eventually("it is set aside", func() bool { return v.Stats().SetAside > 0 })
	if got := depths(); got != [2]int{} {
		t.Errorf("copies %v before the commit", got)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	for _, queue := range []string{"target", "copy", "blind"} {
		d := s.Receive(queue, 1)[0]
		if d.MessageId != ids[0].String() || !reflect.DeepEqual(d.Headers, amqp.Table{"CC": []any{"copy"}}) {
			t.Errorf("%s: message %s with headers %v", queue, d.MessageId, d.Headers)
		}
	}
	// Without a commit no copy is delivered either.
	s.RollBack(m)
	s.Eventually("it is dropped", func() bool { return v.Stats().Dropped > 0 })
	if got := depths(); got != [2]int{} {
		t.Errorf("copies %v after the rollback", got)
	}
}

func TestAMessageWithAUserIDIsForwardedByAnotherUser(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	other := servertest.User(t, s.AMQP, ".*", ".*", ".*")
	m := stage.To(s.Queue("target", nil), "body")
	m.Publishing.UserId = "guest" // the sender's login

	// Without the escape the broker refuses the message when the other user forwards it.
	err := publish(t, other, m.Target(), m.Publishing)
	if refusal := bridge.Refusal(err); refusal == nil || refusal.Code != amqp.PreconditionFailed {
		t.Errorf("the broker takes a foreign user-id: %v", err)
	}

	ids := s.Commit(m)
	const autoAck = false
	staged, _, err := s.Channel.Get(s.Topology.Queue, autoAck)
	if err != nil || staged.UserId != "" || staged.Headers[wire.HeaderUserID] != "guest" {
		t.Errorf("staged with user-id %q and headers %v, %v", staged.UserId, staged.Headers, err)
	}
	const multiple, requeue = false, true
	if err := staged.Nack(multiple, requeue); err != nil {
		t.Fatal(err)
	}
	s.Broker = dial(t, other, nil) // for the verifier
	s.Verify(verifier.Options{})
	if d := s.Receive("target", 1)[0]; d.MessageId != ids[0].String() || d.UserId != "" || len(d.Headers) != 0 {
		t.Errorf("message %s with user-id %q and headers %v", d.MessageId, d.UserId, d.Headers)
	}
}

func TestTheReceiverSeesTheMessageAsWithoutTheBridge(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	const durable, autoDelete, internal, noWait = true, false, false, false
	if err := s.Channel.ExchangeDeclare("orders", "topic", durable, autoDelete, internal, noWait, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Channel.QueueBind(s.Queue("target", nil), "order.*", "orders", noWait, nil); err != nil {
		t.Fatal(err)
	}
	m := bridge.Message{
		ID: uuid.Must(uuid.NewV7()), Exchange: "orders", RoutingKey: "order.placed",
		Publishing: amqp.Publishing{
			Headers: amqp.Table{
				"text": "a", "bytes": []byte{0, 1}, "yes": true, "nothing": nil,
				"int": 1, "int8": int8(-8), "byte": byte(8), "int16": int16(-16), "uint16": uint16(16),
				"int32": int32(-32), "uint32": uint32(32), "int64": int64(-1 << 60), "large int": 1 << 60,
				"float32": float32(1.5), "float64": 2.5, "decimal": amqp.Decimal{Scale: 2, Value: 314},
				"time": time.Unix(1700000000, 0), "empty": "",
				"table": amqp.Table{"list": []any{"b", int32(2), amqp.Table{}, []any{}}},
				"CC":    []any{"no.such.key"}, "BCC": []any{"nor.this"},
				"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
			},
			ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: amqp.Persistent,
			Priority: 7, CorrelationId: "correlation", ReplyTo: "answers", Expiration: "60000",
			Timestamp: time.Unix(1700000000, 0), Type: "OrderPlaced", AppId: "app", Body: []byte(`{"order":1}`),
		},
	}
	direct := m.Publishing
	direct.MessageId = m.ID.String()
	if err := publish(t, s.AMQP, m.Target(), direct); err != nil {
		t.Fatal(err)
	}
	want := s.Receive("target", 1)[0]
	s.Verify(verifier.Options{})
	s.Commit(m)
	got := s.Receive("target", 1)[0]
	for _, d := range []*amqp.Delivery{&want, &got} {
		d.Acknowledger, d.ConsumerTag, d.DeliveryTag = nil, "", 0
	}
	if len(want.Headers) != len(m.Publishing.Headers)-1 { // no BCC
		t.Errorf("published directly with %d headers, received %d", len(m.Publishing.Headers), len(want.Headers))
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("received through the bridge\n%#v\ndirectly\n%#v", got, want)
	}
}
