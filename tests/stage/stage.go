// Package stage sets up a test of the bridge: a fresh database with a ledger, a fresh virtual host
// with the three queues, and a sender. It also starts verifiers and reads queues.
package stage

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/verifier"
)

// Patience bounds every wait of a test. It only decides how late a failure is reported: a correct
// run must pass on a shared machine that is ten times slower.
const Patience = servertest.Patience

// A Stage has the database, the broker and the processes of one test.
type Stage struct {
	Kind        Database
	DatabaseURL string
	AMQP        string
	DB          *sql.DB
	Ledger      driver.Ledger
	Broker      *bridge.Broker
	Topology    bridge.Topology
	Sender      *sender.Sender
	// Strict makes verifiers accept only messages that were recorded after their session began as
	// evidence that the senders commit here (rule 6). By default a committed message of any age is
	// enough, since most tests send before a session begins. Without evidence nothing is dropped:
	// see Evidence.
	Strict  bool
	Channel *amqp.Channel      // for a test's own actions on queues
	closed  <-chan *amqp.Error // the end of Channel

	t testing.TB

	mu      sync.Mutex
	running []*Running
	queues  []string
}

// New makes a stage on a fresh database and a fresh vhost.
func New(t testing.TB, kind Database) *Stage {
	t.Helper()
	return On(t, kind, servertest.Vhost(t), bridge.Topology{Queue: "staging"})
}

// On makes a stage on a fresh database and the given broker and topology.
func On(t testing.TB, kind Database, amqpURL string, topology bridge.Topology) *Stage {
	t.Helper()
	s := &Stage{Kind: kind, DatabaseURL: kind.URL(t), AMQP: amqpURL, Topology: topology, t: t}
	var err error
	s.DB, s.Ledger, err = kind.Open(t.Context(), s.DatabaseURL)
	s.must("open ledger", err)
	t.Cleanup(func() { _ = s.DB.Close() })
	s.Broker, err = bridge.Dial(t.Context(), amqpURL, &bridge.BrokerOptions{DialTimeout: Patience, Logger: Logger(t)})
	s.must("dial broker", err)
	t.Cleanup(s.Broker.Close)
	s.must("declare topology", topology.Declare(t.Context(), s.Broker))
	s.Sender = s.NewSender(sender.Options{Carry: sender.CarryNever})
	conn, channel := s.dial()
	t.Cleanup(func() { _ = conn.Close() })
	s.Channel, s.closed = channel, channel.NotifyClose(make(chan *amqp.Error, 1))
	return s
}

// dial opens a channel on a new connection.
func (s *Stage) dial() (*amqp.Connection, *amqp.Channel) {
	s.t.Helper()
	conn, err := amqp.Dial(s.AMQP)
	s.must("dial", err)
	ch, err := conn.Channel()
	s.must("open channel", err)
	return conn, ch
}

// NewSender returns another sender. Its queues and its timeout are the stage's.
func (s *Stage) NewSender(opts sender.Options) *sender.Sender {
	s.t.Helper()
	opts.Queue, opts.Exchange, opts.OrderedShards, opts.Timeout = s.Topology.Queue, s.Topology.Exchange, s.Topology.OrderedShards, Patience
	made, err := sender.New(s.Ledger, s.Broker, &opts)
	s.must("new sender", err)
	return made
}

// StageSingly makes the sender stage every message alone from now on, as senders in other languages
// do.
func (s *Stage) StageSingly() {
	s.t.Helper()
	s.Sender = s.NewSender(sender.Options{Carry: sender.CarryNever, GroupMessages: 1})
}

func (s *Stage) must(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
}

// Logger returns a logger that writes to the test's log. A verifier that does not receive its
// deliveries fails the test, since its connection would stop for a second each time.
func Logger(t testing.TB) *slog.Logger {
	w := &testWriter{t: t}
	t.Cleanup(w.close)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// testWriter writes to a test's log until the test has ended.
type testWriter struct {
	mu sync.Mutex
	t  testing.TB
}

func (w *testWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t != nil {
		w.t.Logf("%s", p[:max(0, len(p)-1)])
		if bytes.Contains(p, []byte("deliveries are not received")) {
			w.t.Error("a connection has paused for too long")
		}
	}
	return len(p), nil
}

func (w *testWriter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.t = nil
}

// Queue declares a durable classic target queue.
func (s *Stage) Queue(name string, args amqp.Table) string {
	s.t.Helper()
	_, err := s.Channel.QueueDeclare(name, true, false, false, false, args)
	s.must("declare queue", err)
	s.mu.Lock()
	s.queues = append(s.queues, name)
	s.mu.Unlock()
	return name
}

// To returns a message with a body for a queue.
func To(queue, body string) bridge.Message {
	return bridge.Message{RoutingKey: queue, Publishing: amqp.Publishing{Body: []byte(body)}}
}

// Begin begins a transaction and records and stages the messages in it.
func (s *Stage) Begin(messages ...bridge.Message) (*sql.Tx, []uuid.UUID) {
	s.t.Helper()
	tx, err := s.DB.BeginTx(s.t.Context(), nil)
	s.must("begin", err)
	ids, err := s.Sender.SendTx(s.t.Context(), bridge.SQL(tx), messages...)
	if err != nil {
		_ = tx.Rollback()
		s.t.Fatalf("send: %v", err)
	}
	return tx, ids
}

// Commit stages the messages in a transaction that commits.
func (s *Stage) Commit(messages ...bridge.Message) []uuid.UUID {
	s.t.Helper()
	tx, ids := s.Begin(messages...)
	s.must("commit", tx.Commit())
	return ids
}

// CommitCarried commits rows that carry the messages. It publishes no copy.
func (s *Stage) CommitCarried(messages ...bridge.Message) []uuid.UUID {
	s.t.Helper()
	var ids []uuid.UUID
	var entries []driver.Entry
	for _, m := range messages {
		m.ID = uuid.Must(uuid.NewV7())
		staged := wire.Staged{Message: m, Ledger: s.Ledger.Identity(), StagedAt: time.Now(), Carried: true}
		ids = append(ids, m.ID)
		entries = append(entries, driver.Entry{ID: m.ID, Message: wire.EncodeRecord(staged.Publishing()), Unpublished: true})
	}
	tx, err := s.DB.BeginTx(s.t.Context(), nil)
	s.must("begin", err)
	defer func() { _ = tx.Rollback() }()
	s.must("record", s.Ledger.Record(s.t.Context(), bridge.SQL(tx), entries))
	s.must("commit", tx.Commit())
	return ids
}

// RollBack stages the messages in a transaction that rolls back.
func (s *Stage) RollBack(messages ...bridge.Message) []uuid.UUID {
	s.t.Helper()
	tx, ids := s.Begin(messages...)
	s.must("roll back", tx.Rollback())
	return ids
}

// A Running is a verifier that Verify has started.
type Running struct {
	*verifier.Verifier
	t      testing.TB
	cancel context.CancelFunc
	ended  chan error
}

// Verify runs a verifier with the stage's topology until Stop or the end of the test, and waits
// until it has started. The defaults of ConfirmTimeout and Drain are so long here that a slow machine
// causes no second copy and no redelivery.
func (s *Stage) Verify(opts verifier.Options) *Running {
	s.t.Helper()
	opts.Topology = s.Topology
	if opts.Logger == nil {
		opts.Logger = Logger(s.t)
	}
	if opts.ConfirmTimeout == 0 {
		opts.ConfirmTimeout = Patience
	}
	if opts.Drain == 0 {
		opts.Drain = Patience / 2
	}
	s.DB.SetMaxIdleConns(opts.Connections())
	v, err := verifier.New(s.Judging(), s.Broker, &opts)
	s.must("new verifier", err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &Running{Verifier: v, t: s.t, cancel: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- v.Run(ctx) }()
	s.mu.Lock()
	s.running = append(s.running, r)
	s.mu.Unlock()
	s.t.Cleanup(r.Stop)
	s.Eventually("the verifier has started", func() bool { return v.Stats().Sessions > 0 || len(r.ended) > 0 })
	return r
}

// Cancel ends the verifier without waiting for it.
func (r *Running) Cancel() { r.cancel() }

// Stop ends the verifier and waits for it to drain.
func (r *Running) Stop() {
	r.t.Helper()
	r.cancel()
	err := servertest.Next(r.t, "the verifier stops", r.ended)
	r.ended <- nil
	if err != nil && !errors.Is(err, verifier.ErrNotDrained) {
		r.t.Errorf("verifier: %v", err)
	}
}

// Receive takes n messages from a queue and acks them.
func (s *Stage) Receive(queue string, n int) []amqp.Delivery {
	s.t.Helper()
	deliveries, stop := s.Consume(queue)
	defer stop()
	var out []amqp.Delivery
	timeout := time.After(Patience)
	for len(out) < n {
		select {
		case d, ok := <-deliveries:
			if !ok {
				s.t.Fatalf("queue %s: consumer ended", queue)
			}
			s.must("ack", d.Ack(false))
			out = append(out, d)
		case <-timeout:
			s.t.Fatalf("not in time: queue %s: %d of %d messages came%s", queue, len(out), n, s.State())
		}
	}
	return out
}

// Consume starts a consumer on a new connection.
func (s *Stage) Consume(queue string) (<-chan amqp.Delivery, func()) {
	s.t.Helper()
	conn, ch := s.dial()
	s.must("set prefetch", ch.Qos(1000, 0, false))
	deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
	s.must("consume", err)
	return deliveries, func() { _ = conn.Close() }
}

// WaitEmpty waits until a queue without a consumer has no message: then all of its messages have
// been acked. The staging queues have no consumer once the verifier has stopped.
func (s *Stage) WaitEmpty(queue string) { s.t.Helper(); s.WaitDepth(queue, 0) }

// WaitDepth waits until a queue holds n ready messages.
func (s *Stage) WaitDepth(queue string, n int) {
	s.t.Helper()
	s.Eventually(queue+" has the expected depth", func() bool { return s.Depth(queue) == n })
}

// Depth returns the number of ready messages in a queue.
func (s *Stage) Depth(queue string) int {
	s.t.Helper()
	q, err := s.Channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		s.t.Fatalf("inspect queue %s: %v; the channel's end: %v", queue, err, s.channelEnd())
	}
	return q.Messages
}

// channelEnd returns why the stage's channel was closed.
func (s *Stage) channelEnd() error {
	select {
	case err, ok := <-s.closed:
		if ok {
			return err
		}
	default:
	}
	return errors.New("no reason is known")
}

// Staged returns the messages in the staging queue, including members of groups, and leaves them
// there.
func (s *Stage) Staged() []amqp.Delivery {
	s.t.Helper()
	return s.members(s.Topology.Queue)
}

// StagedInOrder returns the messages in the ordered queue of a key, and leaves them there. The
// queue must have no other consumer: a quorum queue with a single active consumer allows no
// basic.get.
func (s *Stage) StagedInOrder(key string) []amqp.Delivery {
	s.t.Helper()
	return s.inOrder(s.Topology.OrderedQueueOf(key))
}

func (s *Stage) inOrder(queue string) (all []amqp.Delivery) {
	s.t.Helper()
	depth := s.Depth(queue)
	deliveries, stop := s.Consume(queue)
	timeout := time.After(Patience)
	for range depth {
		select {
		case d := <-deliveries:
			members, err := wire.Members(d)
			s.must("take apart", err)
			all = append(all, members...)
		case <-timeout:
			s.t.Fatalf("fewer than %d messages in queue %s", depth, queue)
		}
	}
	stop()
	s.WaitDepth(queue, depth)
	return all
}

// Waiting returns the messages in the waiting queue, as Staged does.
func (s *Stage) Waiting() []amqp.Delivery {
	s.t.Helper()
	return s.members(s.Topology.WaitingQueue())
}

func (s *Stage) members(queue string) (all []amqp.Delivery) {
	s.t.Helper()
	conn, ch := s.dial()
	defer func() { _ = conn.Close() }()
	depth := s.Depth(queue)
	for range depth {
		d, ok, err := ch.Get(queue, false)
		s.must("get", err)
		if !ok {
			s.t.Fatalf("fewer than %d messages in queue %s", depth, queue)
		}
		if wire.IsMarker(d) { // of a verifier that has stopped
			continue
		}
		members, err := wire.Members(d)
		s.must("take apart", err)
		all = append(all, members...)
	}
	s.must("close", conn.Close())
	// Messages that are staged early may still arrive.
	s.Eventually(queue+" has its messages again", func() bool { return s.Depth(queue) >= depth })
	return all
}

// Rows returns the number of rows in the ledger.
func (s *Stage) Rows() int {
	s.t.Helper()
	var n int
	s.must("count rows", s.DB.QueryRowContext(s.t.Context(), `SELECT count(*) FROM bridge_ledger`).Scan(&n))
	return n
}

// Eventually polls for a state that no server signals.
func (s *Stage) Eventually(what string, holds func() bool) {
	s.t.Helper()
	servertest.Eventually(s.t, what, holds, s.State)
}
