package world

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/faults/parts"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/verifier"
)

// Config says on what a world stands.
type Config struct {
	Program    string // built by Build; empty is this binary, which calls Main
	Mutant     string // which of those in the program the processes are; none by default
	AMQP       string // the broker's URL
	Nodes      string // the URL with all nodes of a cluster, for senders and verifiers; empty: AMQP
	Shop, Post string // the databases' URLs, postgres:// or mysql://; the sender's, with the ledger, and the receiver's
	Topology   bridge.Topology
	Diary      *Diary
	// MoreTargets are queues, declared by the test, that receivers consume too.
	MoreTargets []string
	Keys        int  // of the messages that must keep their order; 0: there are none
	Quorum      bool // quorum queues for all targets, as in a cluster
	// Carry is which messages the senders' rows carry: of the first sender, the second, and so on,
	// then from the first on. Without it none carries. Scripts carry only by AddCarrying.
	Carry []sender.Carry
	// Delayed: some messages that senders make up are delayed, and some of these are cancelled.
	Delayed bool
	Pause   time.Duration // at most, of each of a sender's workers between two transactions
}

// The targets. Messages for Nowhere and Forbidden are meant for the dead queue:
// the one is missing, the other is not on the verifiers' allow-list.
var (
	Classic   = bridge.Target{RoutingKey: "target.classic"}
	Quorum    = bridge.Target{RoutingKey: "target.quorum"}
	Exchange  = bridge.Target{Exchange: "orders", RoutingKey: "order.placed"}
	Ordered   = bridge.Target{Exchange: "in order", RoutingKey: "step"} // with Config.Keys
	Nowhere   = bridge.Target{RoutingKey: "nowhere"}
	Forbidden = bridge.Target{RoutingKey: "forbidden"}
)

// exchangeQueue is bound to Exchange.
const exchangeQueue = "target.exchange"

// orderedQueue is bound to Ordered. It is full every now and then. It is a quorum queue: when a
// node starts again, a classic queue drops of its confirmed messages what exceeds
// x-max-length, those among them that were unacked, although it is to reject what is
// published (measured on 3.10.8 and 4.3.6).
const orderedQueue = "target.ordered"

// queueOf is the queue behind each target that has one.
var queueOf = map[bridge.Target]string{
	Classic:  Classic.RoutingKey,
	Quorum:   Quorum.RoutingKey,
	Exchange: exchangeQueue,
}

// targetQueues are the queues behind the targets that every world has.
func targetQueues() []string { return []string{Classic.RoutingKey, Quorum.RoutingKey, exchangeQueue} }

// receiverQueues are those that receivers consume.
func (w *World) receiverQueues() []string {
	queues := append(targetQueues(), w.config.MoreTargets...)
	if w.config.Keys > 0 {
		queues = append(queues, orderedQueue)
	}
	return queues
}

// stagingQueues are those that verifiers consume.
func (w *World) stagingQueues() []string {
	t := w.config.Topology
	return append([]string{t.Queue, t.WaitingQueue()}, t.OrderedQueues()...)
}

// singleConsumer tells whether a queue has a single active consumer.
func (w *World) singleConsumer(queue string) bool {
	return queue == orderedQueue || slices.Contains(w.config.Topology.OrderedQueues(), queue)
}

var allow = []verifier.Allow{{RoutingKey: "target.*"}, {RoutingKey: "nowhere"}, {Exchange: "orders", RoutingKey: "order.*"}, {Exchange: Ordered.Exchange, RoutingKey: "*"}}

// A World is the processes, and what they leave behind.
type World struct {
	Diary *Diary

	t      testing.TB
	config Config
	shop   database
	post   database

	Senders, Verifiers, Receivers []*Process
	slow                          int // how many slow senders there were

	made time.Time

	mu      sync.Mutex
	events  Events
	ended   []error          // processes that have ended by themselves
	lookout *amqp.Connection // see look
}

// New makes the tables and queues. The processes are added and started by Add.
func New(t testing.TB, c Config) *World {
	t.Helper()
	w := &World{Diary: c.Diary, t: t, config: c, shop: open(t, c.Shop), post: open(t, c.Post), made: time.Now(),
		events: Events{TargetDeleted: make(map[string][]Deletion), Strays: make(map[string]Stray)}}
	ctx := t.Context()
	w.Must("migrate ledger", migrate.Ledger(ctx, w.shop.DB, w.shop.Dialect))
	w.Must("migrate inbox", migrate.Inbox(ctx, w.post.DB, w.post.Dialect))
	w.Must("make the roles", w.shop.makeRoles(ctx, parts.Sender, parts.Verifier))
	w.Must("make the roles", w.post.makeRoles(ctx, parts.Receiver))
	w.Must("create tables", w.shop.exec(ctx,
		`CREATE TABLE orders (id char(36) PRIMARY KEY, target varchar(100) NOT NULL, at `+w.shop.stamp+`, name varchar(40) NOT NULL, number int NOT NULL, not_before bigint NOT NULL)`,
		`CREATE TABLE counters (name varchar(40) PRIMARY KEY, number int NOT NULL)`,
		`CREATE TABLE stock (item int PRIMARY KEY, amount int NOT NULL)`))
	for item := range parts.Stock {
		w.Must("fill the stock", w.shop.exec(ctx, fmt.Sprintf(`INSERT INTO stock VALUES (%d, 1000000)`, item)))
	}
	for key := range c.Keys {
		w.Must("make the keys", w.shop.exec(ctx, fmt.Sprintf(`INSERT INTO counters VALUES ('%s', 0)`, parts.Key(key))))
	}
	w.Must("create tables", w.post.exec(ctx, // no unique index: what is done twice shall show
		`CREATE TABLE arrivals (place `+w.post.place+`, id varchar(200), queue varchar(200), target varchar(200), intact boolean, at `+w.post.stamp+`)`,
		`CREATE TABLE effects (id varchar(200), queue varchar(200))`))
	w.Must("declare queues", w.Declare(ctx))
	t.Cleanup(func() {
		if w.lookout != nil {
			_ = w.lookout.Close()
		}
	})
	return w
}

// Must ends the test if there is an error.
func (w *World) Must(what string, err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
}

// Main is servertest.Main, in a binary that plays its tests' processes as well.
func Main(m *testing.M) {
	if os.Getenv(parts.Variable) != "" {
		parts.Main()
		return
	}
	servertest.Main(m)
}

// Build builds a program for the processes with the files of an overlay in place of the
// product's.
func Build(t testing.TB, overlay string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "actor")
	servertest.Go(t, "build", "-ldflags=-s -w", "-o", program, // stacks of a panic need neither
		"-overlay", overlay, "github.com/twoqueue/twoqueue/tests/faults/actor")
	return program
}

// Declare declares all queues that are missing.
func (w *World) Declare(ctx context.Context) error {
	broker, err := bridge.Dial(ctx, w.config.AMQP, &bridge.BrokerOptions{DialTimeout: servertest.Patience})
	if err != nil {
		return err
	}
	defer broker.Close()
	if err := w.config.Topology.Declare(ctx, broker); err != nil {
		return err
	}
	return w.onChannel(func(ch *amqp.Channel) error {
		if err := ch.ExchangeDeclare(Exchange.Exchange, "topic", true, false, false, false, nil); err != nil {
			return err
		}
		for _, queue := range targetQueues() {
			args := amqp.Table{"x-queue-type": "classic"}
			if queue == Quorum.RoutingKey || w.config.Quorum {
				args = amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}
			}
			if _, err := ch.QueueDeclare(queue, true, false, false, false, args); err != nil {
				return err
			}
		}
		if err := ch.QueueBind(exchangeQueue, "order.*", Exchange.Exchange, false, nil); err != nil {
			return err
		}
		if w.config.Keys == 0 {
			return nil
		}
		if err := ch.ExchangeDeclare(Ordered.Exchange, "direct", true, false, false, false, nil); err != nil {
			return err
		}
		args := amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1_000_000, "x-single-active-consumer": true, "x-max-length": 30, "x-overflow": "reject-publish"}
		if _, err := ch.QueueDeclare(orderedQueue, true, false, false, false, args); err != nil {
			return err
		}
		return ch.QueueBind(orderedQueue, Ordered.RoutingKey, Ordered.Exchange, false, nil)
	})
}

// onChannel does something at the broker, over no link.
func (w *World) onChannel(do func(ch *amqp.Channel) error) error {
	conn, err := w.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("open channel: %w", err)
	}
	return do(ch)
}

func (w *World) dial() (*amqp.Connection, error) {
	conn, err := amqp.DialConfig(w.config.AMQP, amqp.Config{Dial: amqp.DefaultDial(servertest.Patience)})
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	return conn, nil
}

// look is onChannel for what is done again and again while nothing breaks: it keeps
// its connection, whose opening costs the broker more than what is done on it.
func (w *World) look(do func(ch *amqp.Channel) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lookout == nil || w.lookout.IsClosed() {
		conn, err := w.dial()
		if err != nil {
			return err
		}
		w.lookout = conn
	}
	ch, err := w.lookout.Channel()
	if err != nil {
		return fmt.Errorf("open channel: %w", err)
	}
	defer ch.Close()
	return do(ch)
}

// depth is the number of messages that are ready in the queues.
func (w *World) depth(queues ...string) (n int, err error) {
	err = w.look(func(ch *amqp.Channel) error {
		for _, queue := range queues {
			q, err := w.inspect(ch, queue)
			if err != nil {
				return err
			}
			n += q.Messages
		}
		return nil
	})
	return n, err
}

// counted is depth once every queue has answered: see inspect.
func (w *World) counted(ctx context.Context, queues ...string) (n int, err error) {
	err = servertest.Await(ctx, fmt.Sprintf("%v are counted", queues), func() (_ bool, err error) {
		n, err = w.depth(queues...)
		return err == nil, err
	})
	return n, err
}

// answers is within which time a quorum queue must have answered the broker: else it tells
// that the queue has no messages and no consumers (stat in rabbit_quorum_queue.erl, read
// in 3.10.8 and 4.3.6: 250 ms).
const answers = 200 * time.Millisecond

// inspect counts the messages that are ready in a queue, and its consumers. It says that
// there are none only if the queue itself has said so.
func (w *World) inspect(ch *amqp.Channel, queue string) (amqp.Queue, error) {
	began := time.Now()
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil || q.Messages > 0 || q.Consumers > 0 {
		return q, err
	}
	if took := time.Since(began); took >= answers {
		return q, fmt.Errorf("queue %s may not have answered: its count took %v", queue, took)
	}
	// Without a leader the broker says at once that there is nothing. A get has no answer
	// then, nor has a consumer, where a get is not allowed.
	if w.singleConsumer(queue) {
		_, err := ch.Consume(queue, "", false, false, false, false, nil)
		return q, err
	}
	const autoAck = false
	_, ok, err := ch.Get(queue, autoAck)
	if ok { // handed back with the end of the channel
		q.Messages++
	}
	return q, err
}

// AddSender adds and starts a sender that makes transactions up.
func (w *World) AddSender(workers int, seed uint64) *Process {
	w.t.Helper()
	targets := []parts.Target{{Target: Classic, Weight: 40}, {Target: Quorum, Weight: 40}, {Target: Exchange, Weight: 40},
		{Target: Nowhere, Weight: 1}, {Target: Forbidden, Weight: 1}}
	if w.config.Keys > 0 {
		targets = append(targets, parts.Target{Target: Ordered, Weight: 240, Keys: w.config.Keys})
	}
	return w.add(&w.Senders, parts.Brief{Role: parts.Sender, Database: w.config.Shop, Seed: seed, Workers: workers, Pause: w.config.Pause,
		Carry: w.carry(len(w.Senders)), Delayed: w.config.Delayed, Targets: targets})
}

// carry is which messages a sender carries.
func (w *World) carry(n int) sender.Carry {
	if len(w.config.Carry) == 0 {
		return sender.CarryNever
	}
	return w.config.Carry[n%len(w.config.Carry)]
}

// AddCarrying is AddScript for a sender that carries all messages. It holds at most pending bytes
// of those whose confirm is missing; 0: the default.
func (w *World) AddCarrying(pending int, script ...parts.Transaction) *Process {
	w.t.Helper()
	return w.make(&w.Senders, parts.Brief{Role: parts.Sender, Database: w.config.Shop, Script: script, Carry: sender.CarryAlways, Pending: pending})
}

// AddScript adds a sender that makes these transactions and ends; it is not
// started.
func (w *World) AddScript(script ...parts.Transaction) *Process {
	w.t.Helper()
	return w.make(&w.Senders, parts.Brief{Role: parts.Sender, Database: w.config.Shop, Script: script, Carry: sender.CarryNever})
}

// AddVerifier adds and starts a verifier. Options that are set replace the usual
// ones.
func (w *World) AddVerifier(change ...func(*verifier.Options)) *Process {
	w.t.Helper()
	options := parts.VerifierOptions(w.config.Topology)
	options.Allow = allow
	for _, c := range change {
		c(&options)
	}
	return w.add(&w.Verifiers, parts.Brief{Role: parts.Verifier, Database: w.config.Shop, Options: options})
}

// AddReceiver adds and starts a receiver.
func (w *World) AddReceiver() *Process {
	w.t.Helper()
	return w.add(&w.Receivers, parts.Brief{Role: parts.Receiver, Database: w.config.Post, Queues: w.receiverQueues(), InOrder: []string{orderedQueue}})
}

// newSlowSender makes a sender of these transactions, all at the same time. It is none of
// Processes.
func (w *World) newSlowSender(script []parts.Transaction) *Process {
	w.t.Helper()
	w.slow++
	return w.process(fmt.Sprintf("slow-%s-%d", parts.Sender, w.slow),
		parts.Brief{Role: parts.Sender, Database: w.config.Shop, Script: script, AtOnce: true, Carry: w.carry(w.slow)})
}

func (w *World) add(to *[]*Process, b parts.Brief) *Process {
	w.t.Helper()
	p := w.make(to, b)
	p.Start()
	return p
}

func (w *World) make(to *[]*Process, b parts.Brief) *Process {
	w.t.Helper()
	p := w.process(fmt.Sprintf("%s-%d", b.Role, len(*to)+1), b)
	*to = append(*to, p)
	return p
}

func (w *World) process(name string, b parts.Brief) *Process {
	w.t.Helper()
	b.Database = w.shop.as(b.Role, b.Database)
	b.AMQP, b.Topology = w.config.AMQP, w.config.Topology
	return newProcess(w.t, w.config, w.Diary, name, b)
}

// Processes are all that were added.
func (w *World) Processes() []*Process {
	var all []*Process
	all = append(all, w.Senders...)
	all = append(all, w.Verifiers...)
	return append(all, w.Receivers...)
}

// hadEnded keeps, for the judge, that a process has ended by itself.
func (w *World) hadEnded(err error) {
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended = append(w.ended, err)
	}
}

// Shop is the senders' database, Post the receivers'.
func (w *World) Shop() *sql.DB { return w.shop.DB }

// Post is the receivers' database.
func (w *World) Post() *sql.DB { return w.post.DB }

// AwaitCount waits until a query that counts says enough.
func (w *World) AwaitCount(what string, db *sql.DB, query string, enough func(n int) bool) error {
	return awaitCount(w.t.Context(), what, db, query, enough)
}

func awaitCount(ctx context.Context, what string, db *sql.DB, query string, enough func(n int) bool) error {
	return servertest.Await(ctx, what, func() (bool, error) {
		n, err := count(ctx, db, query)
		return err == nil && enough(n), err
	})
}
