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

// Config describes the servers and the traffic of a world.
type Config struct {
	Program    string // built by Build; if empty, this binary, which calls Main
	Mutant     string // the program's mutant that the processes are; none by default
	AMQP       string // the broker's URL
	Nodes      string // the URL with all nodes of a cluster, for senders and verifiers; empty: AMQP
	Shop, Post string // the databases' URLs, postgres:// or mysql://: the senders', with the ledger, and the receivers'
	Topology   bridge.Topology
	Diary      *Diary
	// MoreTargets are further queues, declared by the test, that receivers consume.
	MoreTargets []string
	Keys        int  // number of order keys; 0: there are none
	Quorum      bool // quorum queues for all targets, as in a cluster
	// Carry has each sender's form of carrying: of the first sender, the second, and so on, then
	// again from the beginning. If it is empty, no sender carries. Scripts do not
	// carry.
	Carry []sender.Carry
	// Delayed says that some invented messages are delayed, and some of these are cancelled.
	Delayed bool
	Pause   time.Duration // the longest pause of a sender's worker between two transactions
}

// The targets. Messages for Nowhere and Forbidden belong into the dead queue: Nowhere is missing,
// and Forbidden is not on the verifiers' allow-list.
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

// orderedQueue is bound to Ordered. It is full every now and then. It is a quorum queue, since a
// classic queue loses messages when a node restarts: it drops confirmed messages beyond
// x-max-length, including messages that were unacked, although it should reject new publications
// instead (measured on 3.10.8 and 4.3.6).
const orderedQueue = "target.ordered"

// queueOf has the queue of each target that has one.
var queueOf = map[bridge.Target]string{
	Classic:  Classic.RoutingKey,
	Quorum:   Quorum.RoutingKey,
	Exchange: exchangeQueue,
}

// targetQueues returns the queues of the targets that every world has.
func targetQueues() []string { return []string{Classic.RoutingKey, Quorum.RoutingKey, exchangeQueue} }

// receiverQueues returns the queues that receivers consume.
func (w *World) receiverQueues() []string {
	queues := append(targetQueues(), w.config.MoreTargets...)
	if w.config.Keys > 0 {
		queues = append(queues, orderedQueue)
	}
	return queues
}

// stagingQueues returns the queues that verifiers consume.
func (w *World) stagingQueues() []string {
	t := w.config.Topology
	return append([]string{t.Queue, t.WaitingQueue()}, t.OrderedQueues()...)
}

// singleConsumer reports whether a queue has a single active consumer.
func (w *World) singleConsumer(queue string) bool {
	return queue == orderedQueue || slices.Contains(w.config.Topology.OrderedQueues(), queue)
}

var allow = []verifier.Allow{{RoutingKey: "target.*"}, {RoutingKey: "nowhere"}, {Exchange: "orders", RoutingKey: "order.*"}, {Exchange: Ordered.Exchange, RoutingKey: "*"}}

// A World has the processes, their databases and queues, and the diary.
type World struct {
	Diary *Diary

	t      testing.TB
	config Config
	shop   database
	post   database

	Senders, Verifiers, Receivers []*Process
	slow                          int // number of slow senders so far

	made time.Time

	mu      sync.Mutex
	events  Events
	ended   []error          // processes that have ended by themselves
	lookout *amqp.Connection // see look
}

// New creates the tables and queues. The Add methods add the processes.
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
	w.Must("create tables", w.post.exec(ctx, // no unique index, so that duplicates show
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

// Main calls servertest.Main, in a binary that also plays its tests' processes.
func Main(m *testing.M) {
	if os.Getenv(parts.Variable) != "" {
		parts.Main()
		return
	}
	servertest.Main(m)
}

// Build builds a program for the processes, in which the files of an overlay replace the product's.
func Build(t testing.TB, overlay string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "actor")
	servertest.Go(t, "build", "-ldflags=-s -w", "-o", program, // stacks of a panic need neither symbols nor DWARF
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

// onChannel runs do on a new connection to the broker, without a link.
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

// look runs do as onChannel does, on a connection that it keeps. Frequent inspections use it, since
// a connection costs the broker more than the inspection. No fault may break it meanwhile.
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

// depth returns the number of ready messages in the queues.
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

// counted waits until every queue has answered (see inspect), and returns depth.
func (w *World) counted(ctx context.Context, queues ...string) (n int, err error) {
	err = servertest.Await(ctx, fmt.Sprintf("%v are counted", queues), func() (_ bool, err error) {
		n, err = w.depth(queues...)
		return err == nil, err
	})
	return n, err
}

// answers is the time in which a quorum queue must have answered the broker. After 250 ms the
// broker reports a queue without messages and consumers instead (stat in rabbit_quorum_queue.erl,
// read in 3.10.8 and 4.3.6).
const answers = 200 * time.Millisecond

// inspect counts the ready messages of a queue, and its consumers. It returns an error unless the
// queue itself has reported that there are none.
func (w *World) inspect(ch *amqp.Channel, queue string) (amqp.Queue, error) {
	began := time.Now()
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil || q.Messages > 0 || q.Consumers > 0 {
		return q, err
	}
	if took := time.Since(began); took >= answers {
		return q, fmt.Errorf("queue %s may not have answered: its count took %v", queue, took)
	}
	// Without a leader the broker reports an empty queue at once. A get is then not answered, and
	// neither is a consume, which is for queues that do not allow a get.
	if w.singleConsumer(queue) {
		_, err := ch.Consume(queue, "", false, false, false, false, nil)
		return q, err
	}
	const autoAck = false
	_, ok, err := ch.Get(queue, autoAck)
	if ok { // returned to the queue when the channel closes
		q.Messages++
	}
	return q, err
}

// AddSender adds and starts a sender that invents transactions.
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

// carry returns the form of carrying of a sender.
func (w *World) carry(n int) sender.Carry {
	if len(w.config.Carry) == 0 {
		return sender.CarryNever
	}
	return w.config.Carry[n%len(w.config.Carry)]
}

// AddScript adds a sender that runs these transactions and ends. The caller starts it.
func (w *World) AddScript(script ...parts.Transaction) *Process {
	w.t.Helper()
	return w.make(&w.Senders, parts.Brief{Role: parts.Sender, Database: w.config.Shop, Script: script, Carry: sender.CarryNever})
}

// AddVerifier adds and starts a verifier. change may change the usual options.
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

// newSlowSender makes a sender that runs these transactions concurrently. It is not in Processes.
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

// Processes returns all processes that were added.
func (w *World) Processes() []*Process {
	var all []*Process
	all = append(all, w.Senders...)
	all = append(all, w.Verifiers...)
	return append(all, w.Receivers...)
}

// hadEnded records, for the judge, that a process has ended by itself.
func (w *World) hadEnded(err error) {
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended = append(w.ended, err)
	}
}

// Shop returns the senders' database.
func (w *World) Shop() *sql.DB { return w.shop.DB }

// Post returns the receivers' database.
func (w *World) Post() *sql.DB { return w.post.DB }

// AwaitCount waits until enough accepts the result of a counting query.
func (w *World) AwaitCount(what string, db *sql.DB, query string, enough func(n int) bool) error {
	return awaitCount(w.t.Context(), what, db, query, enough)
}

// AwaitMore waits until a counting query returns at least that many more than at first. If it does
// not, AwaitMore fails the test with Explain.
func (w *World) AwaitMore(what string, db *sql.DB, query string, more int) {
	w.t.Helper()
	first := -1
	err := w.AwaitCount(what, db, query, func(n int) bool {
		if first < 0 {
			first = n
		}
		return n >= first+more
	})
	if err != nil {
		w.t.Fatalf("%s\nwait: %v", w.Explain(), err)
	}
}

func awaitCount(ctx context.Context, what string, db *sql.DB, query string, enough func(n int) bool) error {
	return servertest.Await(ctx, what, func() (bool, error) {
		n, err := count(ctx, db, query)
		return err == nil && enough(n), err
	})
}
