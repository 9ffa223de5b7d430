// Package emailgateway_test runs the e-mail gateway as its users do: the real binary, a real
// broker, a real database, and a mail server that fails on demand.
package emailgateway_test

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib" // driver
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/tests/emailgateway/mailserver"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// patience bounds every wait.
const patience = servertest.Patience

func TestMain(m *testing.M) { program.Main(m) }

const queue = "emails"

// world is a database with the gateway's tables, a vhost, and a mail server. The first gateway in
// the vhost declares the queues; the others find them.
type world struct {
	t    *testing.T
	amqp string
	url  string
	db   *sql.DB
	mail *mailserver.Server
	ch   *amqp.Channel
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := newWorldOn(t, servertest.PostgresDB(t))
	var err error
	w.db, err = sql.Open("pgx", fmt.Sprintf("%s&statement_timeout=%d", w.url, patience.Milliseconds()))
	w.must(err)
	t.Cleanup(func() { _ = w.db.Close() })
	return w
}

// newWorldOn returns a world on any database, without a connection of the test to it.
func newWorldOn(t *testing.T, databaseURL string) *world {
	t.Helper()
	w := &world{t: t, amqp: servertest.Vhost(t), url: databaseURL, mail: mailserver.Start(t, mailserver.Options{})}
	if r := w.call("migrate"); r.Code != 0 {
		t.Fatalf("no tables: %s", r.Stderr)
	}
	conn, err := amqp.Dial(w.amqp)
	w.must(err)
	t.Cleanup(func() { _ = conn.Close() })
	w.ch, err = conn.Channel()
	w.must(err)
	w.must(w.ch.Confirm(false))
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// run starts the gateway on this world. args are its arguments and, as NAME=value, its variables.
// Its times are short. No password and no address may be in its output.
func (w *world) run(args ...string) *program.Process {
	w.t.Helper()
	p := program.Start(w.t, "email-gateway", w.args(args...)...)
	w.t.Cleanup(func() {
		p.Kill()
		if all := p.Stdout.String() + p.Stderr.String(); strings.Contains(all, "s3cret") || strings.Contains(all, "ann@") {
			w.t.Errorf("a password or an address is in its output:\n%s", all)
		}
	})
	return p
}

// call runs one of the gateway's subcommands to its end.
func (w *world) call(args ...string) program.Result {
	w.t.Helper()
	r := program.Run(w.t, "email-gateway", w.args(args...)...)
	if all := r.Stdout + r.Stderr; strings.Contains(all, "s3cret") {
		w.t.Errorf("a password is in the output of %v:\n%s", args, all)
	}
	return r
}

func (w *world) args(more ...string) []string {
	return append([]string{"EMAIL_DATABASE_URL=" + w.url, "EMAIL_AMQP_URL=" + w.amqp, "EMAIL_QUEUE=" + queue,
		"EMAIL_SMTP_HOST=" + w.mail.Host, "EMAIL_SMTP_PORT=" + w.mail.Port, "EMAIL_SMTP_TLS=none", "EMAIL_HTTP_ADDR=127.0.0.1:0", "EMAIL_LOG_FORMAT=text",
		"EMAIL_SMTP_TIMEOUT=4s", "EMAIL_SMTP_ANSWER=4s", "EMAIL_PAUSE=50ms", "EMAIL_LONGEST_PAUSE=200ms", "EMAIL_ATTEMPTS=4"}, more...)
}

// start starts a gateway and waits until it works.
func (w *world) start(env ...string) *program.Process {
	w.t.Helper()
	p := w.run(env...)
	p.Hear("consumer session started")
	return p
}

func newID(t *testing.T) string {
	t.Helper()
	id, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	return id.String()
}

// body is the body of an e-mail's message.
const body = `{"from":"Shop <shop@example.org>","to":["ann@example.org"],"subject":"Your order","text":"Thank you."}`

// publish publishes e-mails to the queue and returns their IDs.
func (w *world) publish(n int) []string {
	w.t.Helper()
	ids := make([]string, n)
	for i := range ids {
		ids[i] = newID(w.t)
		w.publishAs(ids[i], body)
	}
	return ids
}

func (w *world) publishAs(id, body string) {
	w.t.Helper()
	confirm, err := w.ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{MessageId: id,
		DeliveryMode: amqp.Persistent, ContentType: "application/json", Headers: amqp.Table{"traceparent": "kept"}, Body: []byte(body)})
	w.must(err)
	servertest.Next(w.t, "the broker confirms the e-mail", confirm.Done())
	if !confirm.Acked() {
		w.t.Fatal("the e-mail is not confirmed")
	}
}

// wantStatus waits for an e-mail's status.
func (w *world) wantStatus(id, want string) {
	w.t.Helper()
	var got string
	w.eventually(fmt.Sprintf("the status of %s is %s", id, want), func() bool {
		err := w.db.QueryRow(`SELECT status FROM email_gateway WHERE message_id = $1`, id).Scan(&got)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			w.t.Fatal(err)
		}
		return got == want
	}, func() string { return got })
}

// wantEmpty waits until a queue has no message, ready or unacked. The gateways must have ended.
func (w *world) wantEmpty(name string) {
	w.t.Helper()
	w.wantDepth(name, 0)
}

func (w *world) wantDepth(name string, want int) {
	w.t.Helper()
	got := -1
	w.eventually(fmt.Sprintf("%s holds %d", name, want), func() bool {
		q, err := w.ch.QueueDeclarePassive(name, true, false, false, false, nil)
		w.must(err)
		got = q.Messages
		return got == want
	}, func() string { return fmt.Sprint(got) })
}

// dead is the content of a dead letter that a test expects.
type dead struct{ id, code, words string }

// wantDead waits for these dead letters, in any order, and takes them out of the dead queue.
func (w *world) wantDead(want ...dead) {
	w.t.Helper()
	for range len(want) {
		var d amqp.Delivery
		w.eventually("a message is dead", func() (ok bool) {
			var err error
			d, ok, err = w.ch.Get(queue+".dead", true)
			w.must(err)
			return ok
		})
		reason, _ := d.Headers["x-bridge-dead-reason"].(string)
		text, _ := d.Headers["x-bridge-dead-text"].(string)
		i := slices.IndexFunc(want, func(c dead) bool { return d.MessageId == c.id && reason == c.code && strings.Contains(text, c.words) })
		if i < 0 {
			w.t.Fatalf("the dead letter is %s: %s, %q; want one of %q", d.MessageId, reason, text, want)
		}
		want = slices.Delete(want, i, i+1)
		if d.Headers["traceparent"] != "kept" || d.DeliveryMode != amqp.Persistent || d.ContentType != "application/json" {
			w.t.Errorf("the message has changed: %+v", d)
		}
		if at, _ := d.Headers["x-bridge-dead-at"].(string); at == "" {
			w.t.Error("the dead message has no time")
		}
	}
}

// wantTaken checks that the mail server has accepted each of these e-mails once, and no others.
func (w *world) wantTaken(ids ...string) {
	w.t.Helper()
	want := make(map[string]bool)
	for _, id := range ids {
		want[id] = true
	}
	stage.CompareOnce(w.t, want, w.taken())
}

// taken returns how often the mail server has accepted each e-mail.
func (w *world) taken() map[string]int {
	times := make(map[string]int)
	for _, e := range w.mail.Taken() {
		times[strings.TrimSuffix(strings.TrimPrefix(e.Get("Message-Id"), "<"), "@example.org>")]++
	}
	return times
}

// eventually polls for a condition that no process will signal.
func (w *world) eventually(what string, holds func() bool, now ...func() string) {
	w.t.Helper()
	servertest.Eventually(w.t, what, holds, now...)
}

// wantMetrics waits until the metrics of a gateway have these lines.
func (w *world) wantMetrics(p *program.Process, lines ...string) {
	w.t.Helper()
	w.eventually(fmt.Sprint("the metrics say ", lines), func() bool {
		_, text := p.Endpoint("/metrics")
		for _, line := range lines {
			if !strings.Contains(text, "\n"+line+"\n") {
				return false
			}
		}
		return true
	})
}

// count returns the number of messages with an outcome.
func (w *world) count(p *program.Process, outcome string) (n int) {
	w.t.Helper()
	_, text := p.Endpoint("/metrics")
	_, value, found := strings.Cut(text, fmt.Sprintf("\nemail_gateway_emails_total{outcome=%q} ", outcome))
	if _, err := fmt.Sscan(value, &n); !found || err != nil {
		w.t.Fatalf("no count of %s: %v\n%s", outcome, err, text)
	}
	return n
}

// wantDuplicate sends a copy of a message that p has handled, and waits until p has counted the
// copy as a duplicate.
func (w *world) wantDuplicate(p *program.Process, id string) {
	w.t.Helper()
	w.eventually("the first has ended", func() bool {
		return w.count(p, "sent")+w.count(p, "duplicate")+w.count(p, "doubtful") > 0
	})
	before := w.count(p, "duplicate")
	w.publishAs(id, body)
	w.eventually("the copy is a duplicate", func() bool { return w.count(p, "duplicate") > before })
}
