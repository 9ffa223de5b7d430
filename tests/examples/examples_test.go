package examples

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

func TestMain(m *testing.M) { servertest.Main(m) }

// The addresses that the examples show.
const (
	shopDatabase = "postgres://shop:secret@localhost/shop"
	shopBroker   = "amqp://shop:secret@localhost/"
)

// examples are the tests of the examples that go test does not run.
var examples = map[string]func(t *testing.T, e shown){
	"bridge/example_dial_test.go":             testDial,
	"idempotency/example_batch_test.go":       testConsume,
	"idempotency/example_consume_test.go":     testConsume,
	"idempotency/pgxreceiver/example_test.go": testConsume,
	"idempotency/example_reply_test.go":       testReply,
	"sender/example_test.go":                  sends("emails", "two apples"),
	"sender/example_sendtx_test.go":           sends("placed", "three pears"),
	"sender/example_stage_test.go":            sends("emails", "nine medlars"),
	"sender/example_sqlx_test.go":             sends("parcels", "four plums"),
	"sender/example_owntable_test.go":         testOwnTable,
	"sender/example_carry_test.go":            testCarry,
	"sender/example_delay_test.go":            testDelay,
	"sender/example_sqlserver_test.go":        testSQLServer,
	"verifier/example_test.go":                testVerifier,
	"verifier/ops/example_test.go":            testOps,
}

// declareReceiver declares the queues of a receiver, with the receiver's arguments.
func declareReceiver(s *stage.Stage, queue string) {
	for _, q := range idempotency.ReceiverQueues(queue, nil) {
		s.Queue(q.Name, q.Arguments)
	}
}

func TestEveryExampleWorksAsDescribed(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	all := documented(t)
	built := build(t, all)
	if len(built) != len(all) || len(all) != len(examples) {
		t.Errorf("%d examples without output in %d files, must be one in each of %d", len(all), len(built), len(examples))
	}
	for _, e := range all {
		test, ok := examples[e.file]
		if !ok {
			t.Errorf("%s: Example%s has no output and no test here", e.file, e.name)
			continue
		}
		t.Run(e.file, func(t *testing.T) { test(t, built[e.file]) })
	}
}

// shop returns a stage with the shop's tables and queues; placed is bound to the exchange orders.
func shop(t *testing.T, kind stage.Database) *stage.Stage {
	t.Helper()
	s := stage.On(t, kind, servertest.Vhost(t), bridge.Topology{Queue: "twoqueue"})
	declareReceiver(s, "emails")
	s.Queue("parcels", nil)
	s.Queue("placed", nil)
	if err := s.Channel.ExchangeDeclare("orders", "topic", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Channel.QueueBind("placed", "order.*", "orders", false, nil); err != nil {
		t.Fatal(err)
	}
	if kind.Name == stage.Postgres.Name {
		execute(t, s.DB, `CREATE TABLE orders (body text); CREATE TABLE parcels (id uuid PRIMARY KEY, body text)`)
	}
	return s
}

func execute(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// count returns the number of rows.
func count(ctx context.Context, db *sql.DB, from string) (n int) {
	if err := db.QueryRowContext(ctx, `SELECT count(*) FROM `+from).Scan(&n); err != nil {
		return -1
	}
	return n
}

// arrives runs a verifier and expects one message with this body in the queue.
func arrives(t *testing.T, s *stage.Stage, queue, body string) {
	t.Helper()
	v := s.Verify(verifier.Options{Allow: []verifier.Allow{{Exchange: "*", RoutingKey: "*"}}})
	defer v.Stop()
	if d := s.Receive(queue, 1)[0]; string(d.Body) != body {
		t.Errorf("queue %s got %q, must get %q", queue, d.Body, body)
	}
}

// sends returns the test of an example that sends a message from the shop's PostgreSQL.
func sends(queue, body string) func(t *testing.T, e shown) {
	return func(t *testing.T, e shown) {
		s := shop(t, stage.Postgres)
		e.runs(t, map[string]string{shopDatabase: s.DatabaseURL, shopBroker: s.AMQP})
		if n := count(t.Context(), s.DB, `(SELECT body FROM orders UNION ALL SELECT body FROM parcels) b`); n != 1 {
			t.Errorf("%d rows are stored, must be 1", n)
		}
		arrives(t, s, queue, body)
	}
}

func testOwnTable(t *testing.T, e shown) {
	s := shop(t, stage.Postgres)
	e.runs(t, map[string]string{shopDatabase: s.DatabaseURL, shopBroker: s.AMQP})
	if n := s.Rows(); n != 0 {
		t.Errorf("%d rows in the ledger, must be none", n)
	}
	ledger, err := postgres.OpenOwnTable(t.Context(), s.DB, bridge.OwnTable{Table: "parcels", Column: "id"})
	if err != nil {
		t.Fatal(err)
	}
	s.Ledger = ledger
	arrives(t, s, "parcels", "six figs")
}

// The broker is unreachable when the example runs.
func testCarry(t *testing.T, e shown) {
	s := shop(t, stage.Postgres)
	out := fmt.Sprintf("amqp://shop:secret@%s/", freeAddress(t)) // without a server
	e.runs(t, map[string]string{shopDatabase: s.DatabaseURL, shopBroker: out})
	if n := count(t.Context(), s.DB, "bridge_ledger WHERE message IS NOT NULL"); n != 1 {
		t.Errorf("%d rows carry messages, must be 1", n)
	}
	arrives(t, s, "emails", "seven quinces")
}

// One reminder is cancelled, the other one waits in its row.
func testDelay(t *testing.T, e shown) {
	s := shop(t, stage.Postgres)
	e.runs(t, map[string]string{shopDatabase: s.DatabaseURL, shopBroker: s.AMQP})
	if n := count(t.Context(), s.DB, "orders WHERE body IN ('ten dates, paid', 'eleven limes')"); n != 2 {
		t.Errorf("%d orders are stored, must be 2", n)
	}
	if n, all := count(t.Context(), s.DB, "bridge_ledger WHERE stage_at > now() + interval '59 minutes'"), s.Rows(); n != 1 || all != 1 {
		t.Errorf("%d reminders wait in %d rows, must be 1", n, all)
	}
	if n := s.Depth(s.Topology.Queue); n != 0 {
		t.Errorf("%d messages were published", n)
	}
}

func testSQLServer(t *testing.T, e shown) {
	s := shop(t, stage.SQLServer)
	execute(t, s.DB, `CREATE TABLE orders (body nvarchar(100) PRIMARY KEY)`)
	e.runs(t, map[string]string{
		"sqlserver://shop:secret@localhost?database=shop": s.DatabaseURL, shopBroker: s.AMQP,
	})
	arrives(t, s, "emails", "five cherries")
}

func testVerifier(t *testing.T, e shown) {
	s := shop(t, stage.Postgres)
	p := e.start(t, map[string]string{shopDatabase: s.DatabaseURL, shopBroker: s.AMQP})
	s.Commit(stage.To("emails", "eight grapes"), stage.To("parcels", "not allowed"))
	if d := s.Receive("emails", 1)[0]; string(d.Body) != "eight grapes" {
		t.Errorf("got %q", d.Body)
	}
	s.WaitDepth(s.Topology.DeadQueue(), 1)
	endsWell(t, p.Stop())
}

// The example's verifier forwards, and answers over HTTP as the command verifier does.
func testOps(t *testing.T, e shown) {
	s := shop(t, stage.Postgres)
	valve, database := servertest.Through(t, s.DatabaseURL)
	address := freeAddress(t)
	p := e.start(t, map[string]string{shopDatabase: database, shopBroker: s.AMQP, "localhost:8081": address})
	s.Commit(stage.To("emails", "twelve medlars"))
	if d := s.Receive("emails", 1)[0]; string(d.Body) != "twelve medlars" {
		t.Errorf("got %q", d.Body)
	}
	answers := func(path string, code int, words ...string) {
		t.Helper()
		var last string
		servertest.Eventually(t, path+" answers", func() bool {
			got, text := program.Get(t, "http://"+address+"/verifier"+path)
			last = fmt.Sprint(got, " ", text)
			missing := slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
			return got == code && !missing
		}, func() string { return last })
	}
	answers("/livez", 200, "ok")
	answers("/readyz", 200, "ok")
	answers("/metrics", 200, `twoqueue_messages_total{verdict="forwarded"} 1`, `twoqueue_queue_info{queue="twoqueue",role="staging",vhost="/"} 1`)
	answers("/status/", 200, "status.js")
	answers("/status/status.json", 200, `"state":"running"`, `"known":true`)
	valve.HoldReplies()
	answers("/readyz", 503, "database: not reachable")
	answers("/metrics", 200, "twoqueue_database_usable 0")
	answers("/status/status.json", 200, `"state":"failing"`)
	valve.Release()
	answers("/readyz", 200, "ok")
	endsWell(t, p.Stop())
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func testDial(t *testing.T, e shown) {
	amqpURL := servertest.Vhost(t)
	e.runs(t, map[string]string{shopBroker: amqpURL})
	conn, err := amqp.Dial(amqpURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range (bridge.Topology{Queue: "twoqueue"}).Queues() {
		if _, err := ch.QueueDeclarePassive(q.Name, true, false, false, false, nil); err != nil {
			t.Error(err)
		}
	}
}

// One message comes twice.
func testConsume(t *testing.T, e shown) {
	s := shop(t, stage.Postgres)
	execute(t, s.DB, `CREATE TABLE emails (body text)`)
	p := e.start(t, map[string]string{
		"postgres://mailer:secret@localhost/mailer": s.DatabaseURL, "amqp://mailer:secret@localhost/": s.AMQP,
	})
	for _, id := range []string{"first", "first", "second"} {
		if err := s.Channel.PublishWithContext(t.Context(), "", "emails", true, false, amqp.Publishing{MessageId: id, Body: []byte(id)}); err != nil {
			t.Fatal(err)
		}
	}
	s.Eventually("both are stored", func() bool { return count(t.Context(), s.DB, "emails") == 2 })
	endsWell(t, p.Stop())
	s.WaitEmpty("emails")
	if n := count(t.Context(), s.DB, "emails"); n != 2 {
		t.Errorf("%d e-mails are stored, must be 2", n)
	}
}

// One order comes twice.
func testReply(t *testing.T, e shown) {
	s := stage.On(t, stage.Postgres, servertest.Vhost(t), bridge.Topology{Queue: "twoqueue"})
	declareReceiver(s, "orders")
	s.Queue("invoices", nil)
	execute(t, s.DB, `CREATE TABLE invoices (number integer, cents integer)`)
	p := e.start(t, map[string]string{
		"postgres://billing:secret@localhost/billing": s.DatabaseURL, "amqp://billing:secret@localhost/": s.AMQP,
	})
	order := amqp.Publishing{MessageId: "order 17", ReplyTo: "invoices", Body: []byte(`{"number": 17, "cents": 250}`)}
	for range 2 {
		if err := s.Channel.PublishWithContext(t.Context(), "", "orders", true, false, order); err != nil {
			t.Fatal(err)
		}
	}
	if reply := s.Receive("invoices", 1)[0]; reply.CorrelationId != order.MessageId || string(reply.Body) != string(order.Body) {
		t.Errorf("the reply is %q about %q", reply.Body, reply.CorrelationId)
	}
	endsWell(t, p.Stop())
	if n := count(t.Context(), s.DB, `invoices WHERE number = 17 AND cents = 250`); n != 1 {
		t.Errorf("%d invoices, must be 1", n)
	}
}
