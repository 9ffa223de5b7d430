package receiver_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

const (
	queue   = "orders"
	replies = "invoices"
	staging = "twoqueue" // a Sender's staging queue by default
)

// database is a database on which the service runs.
type database struct {
	stage.Database
	dialect  migrate.Dialect
	edit     []string // replacements in the service's source, as pairs of old and new
	sessions string   // selects the service's sessions, without the one that asks
	end      string   // ends a session
}

var databases = map[string]database{
	"postgres": {stage.Postgres, migrate.PostgreSQL, nil,
		`SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'service'`, `SELECT pg_terminate_backend(%d)`},
	"mariadb": {stage.MariaDB, migrate.MySQL,
		[]string{"jackc/pgx/v5/stdlib", "go-sql-driver/mysql", "bridge/postgres", "bridge/mysql", "postgres.", "mysql.", `"pgx"`, `"mysql"`, "($1, $2)", "(?, ?)"},
		`SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()`, `KILL %d`},
}

// world is the service's database and queues, its processes and a verifier.
type world struct {
	*stage.Stage
	t        testing.TB
	database database
	user     string // the service's login at the broker
	command  func() *exec.Cmd
	services []*program.Process
	verifier *stage.Running
	ended    int // services that ended by themselves

	planned  []string // the bodies of the orders, by their numbers
	poison   []string // the ones that cannot be read
	early    []int    // the orders that arrive before their rows
	held     []int    // the orders that are held in their transactions
	billable int      // how many orders must have an invoice
	copies   int      // how many second copies were published
}

func newWorld(t testing.TB, kind database) *world {
	t.Helper()
	w := &world{t: t, database: kind, Stage: stage.On(t, kind.Database, servertest.Vhost(t), bridge.Topology{Queue: staging})}
	ctx := t.Context()
	must(t, migrate.Inbox(ctx, w.DB, kind.dialect))
	w.exec(`CREATE TABLE orders (number integer PRIMARY KEY)`)
	w.exec(`CREATE TABLE invoices (number integer NOT NULL, cents integer NOT NULL, FOREIGN KEY (number) REFERENCES orders (number))`)
	w.Queue(replies, amqp.Table{"x-queue-type": "quorum"})
	w.Verify()

	databaseURL := w.DatabaseURL
	if kind.Name == stage.Postgres.Name {
		databaseURL += "&application_name=service"
	}
	address := servertest.User(t, w.AMQP, ".*", ".*", ".*")
	parsed, err := url.Parse(address)
	must(t, err)
	w.user = parsed.User.Username()
	path := buildService(t, kind)
	w.command = func() *exec.Cmd {
		cmd := exec.Command(path)
		cmd.Env = append(os.Environ(), "DATABASE_URL="+databaseURL, "AMQP_URL="+address)
		return cmd
	}
	return w
}

// buildService builds the service for a database.
func buildService(t testing.TB, kind database) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "service")
	source, err := os.ReadFile("service/main.go")
	must(t, err)
	overlay := servertest.Overlay(t, "service", map[string]string{"main.go": strings.NewReplacer(kind.edit...).Replace(string(source))})
	servertest.Go(t, "build", "-overlay", overlay, "-o", path, "./service")
	return path
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) exec(statement string) {
	w.t.Helper()
	_, err := w.DB.ExecContext(w.t.Context(), statement)
	must(w.t, err)
}

func (w *world) Verify() {
	w.t.Helper()
	w.verifier = w.Stage.Verify(verifier.Options{})
}

// serve starts a service in place of the n-th.
func (w *world) serve(n int) {
	w.t.Helper()
	for len(w.services) <= n {
		w.services = append(w.services, nil)
	}
	w.services[n] = program.StartCmd(w.t, w.command())
}

// supervise restarts services that have ended by themselves, as a service does that finds no
// broker.
func (w *world) supervise() {
	w.t.Helper()
	for n, p := range w.services {
		if p.HasEnded() {
			w.t.Logf("a service has ended: %s", p.Stderr.String()[max(0, len(p.Stderr.String())-300):])
			w.ended++
			w.serve(n)
		}
	}
}

// heard returns how often the running services have logged a text.
func (w *world) heard(text string) (n int) {
	for _, p := range w.services {
		n += heard(p.Stderr.String(), text)
	}
	return n
}

// awaitInvoices waits until n invoices are committed.
func (w *world) awaitInvoices(n int) {
	w.t.Helper()
	var have int
	err := servertest.Await(w.t.Context(), fmt.Sprintf("%d invoices are written", n), func() (bool, error) {
		w.supervise()
		err := w.DB.QueryRowContext(w.t.Context(), `SELECT count(*) FROM invoices`).Scan(&have)
		return have >= n, err
	})
	if err != nil {
		w.t.Fatalf("%v; now: %d%s", err, have, w.State())
	}
}

// publish publishes orders to the queue, each with an ID of its own and some of them twice.
func (w *world) publish(bodies []string) {
	w.t.Helper()
	conn, err := amqp.Dial(w.AMQP)
	must(w.t, err)
	defer conn.Close()
	channel, err := conn.Channel()
	must(w.t, err)
	must(w.t, channel.Confirm(false))
	var confirms []*amqp.DeferredConfirmation
	for n, body := range bodies {
		p := amqp.Publishing{MessageId: uuid.Must(uuid.NewV7()).String(), DeliveryMode: amqp.Persistent, ReplyTo: replies, Body: []byte(body)}
		copies := 1
		if n%twice == 0 {
			copies = 2
			w.copies++
		}
		for range copies {
			confirm, err := channel.PublishWithDeferredConfirm("", queue, true, false, p)
			must(w.t, err)
			confirms = append(confirms, confirm)
		}
	}
	for _, confirm := range confirms {
		if acked, err := confirm.WaitContext(w.t.Context()); err != nil || !acked {
			w.t.Fatalf("an order is not confirmed: %v", err)
		}
	}
}

// closeConnections has the broker close all connections of the services.
func (w *world) closeConnections() {
	w.t.Helper()
	_, err := servertest.RabbitMQ(w.t).Eval(w.t.Context(), `rabbit_networking:close_all_user_connections(<<"%s">>, <<"closed by a test">>)`, w.user)
	must(w.t, err)
}

// endSessions ends all database sessions of the services, and returns their number.
func (w *world) endSessions() (ended int) {
	w.t.Helper()
	rows, err := w.DB.QueryContext(w.t.Context(), w.database.sessions)
	must(w.t, err)
	defer rows.Close()
	var ids []int
	for rows.Next() {
		var id int
		must(w.t, rows.Scan(&id))
		ids = append(ids, id)
	}
	must(w.t, rows.Err())
	must(w.t, rows.Close())
	for _, id := range ids {
		if _, err := w.DB.ExecContext(context.Background(), fmt.Sprintf(w.database.end, id)); err == nil { // fails if the session has ended by itself
			ended++
		}
	}
	return ended
}

// ready returns the number of ready messages in a queue and its retry queues.
func (w *world) ready() (n int) {
	w.t.Helper()
	for _, name := range []string{queue, queue + ".retry.1s", queue + ".retry.5s", queue + ".retry.30s", queue + ".retry.2m"} {
		n += w.Depth(name)
	}
	return n
}
