// Package emailgateway_test runs the e-mail gateway as its users do: the real
// binary, a real broker, a real database, and a mail server that fails on demand.
package emailgateway_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib" // driver
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/tests/emailgateway/mailserver"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// patience bounds every wait.
const patience = servertest.Patience

func TestMain(m *testing.M) { program.Main(m) }

const queue = "emails"

// A world has a database with the gateway's tables, a vhost with its queues, and a
// mail server.
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
	w.db, err = sql.Open("pgx", w.url)
	w.must(err)
	t.Cleanup(func() { _ = w.db.Close() })
	return w
}

// newWorldOn is a world on any database, without a look into it.
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
	for _, name := range []string{queue, queue + ".dead"} {
		_, err := w.ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1000})
		w.must(err)
	}
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// run starts the gateway on this world; args are its arguments, and its variables
// where they have the form NAME=value. Its times are short.
func (w *world) run(args ...string) *process {
	w.t.Helper()
	return run(w.t, w.args(args...)...)
}

// call runs one of the gateway's subcommands to its end.
func (w *world) call(args ...string) program.Result {
	w.t.Helper()
	r := program.Run(w.t, "email-gateway", w.args(args...)...)
	if all := r.Stdout + r.Stderr; strings.Contains(all, "s3cret") {
		w.t.Errorf("a password is in what %v wrote:\n%s", args, all)
	}
	return r
}

func (w *world) args(more ...string) []string {
	return append([]string{"EMAIL_DATABASE_URL=" + w.url, "EMAIL_AMQP_URL=" + w.amqp, "EMAIL_QUEUE=" + queue,
		"EMAIL_SMTP_HOST=" + w.mail.Host, "EMAIL_SMTP_PORT=" + w.mail.Port, "EMAIL_SMTP_TLS=none", "EMAIL_HTTP_ADDR=127.0.0.1:0", "EMAIL_LOG_FORMAT=text",
		"EMAIL_SMTP_TIMEOUT=4s", "EMAIL_SMTP_ANSWER=4s", "EMAIL_PAUSE=50ms", "EMAIL_LONGEST_PAUSE=200ms", "EMAIL_ATTEMPTS=4"}, more...)
}

// start starts a gateway and waits until it works.
func (w *world) start(env ...string) *process {
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

// body is an e-mail's.
const body = `{"from":"Shop <shop@example.org>","to":["ann@example.org"],"subject":"Your order","text":"Thank you."}`

// publish puts e-mails into the queue and returns their IDs.
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
	if acked, err := confirm.WaitContext(w.t.Context()); err != nil || !acked {
		w.t.Fatalf("not confirmed: %v", err)
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

// wantEmpty waits until nothing is in a queue, ready or unacked. The gateways must
// have ended.
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

// A dead is what a message in the dead queue says.
type dead struct{ id, code, words string }

// wantDead waits for messages in the dead queue, in any order, and takes them.
func (w *world) wantDead(want ...dead) {
	w.t.Helper()
	for range want {
		var d amqp.Delivery
		w.eventually("a message is dead", func() (ok bool) {
			var err error
			d, ok, err = w.ch.Get(queue+".dead", true)
			w.must(err)
			return ok
		})
		reason, _ := d.Headers["x-bridge-dead-reason"].(string)
		text, _ := d.Headers["x-bridge-dead-text"].(string)
		if !slices.ContainsFunc(want, func(c dead) bool { return d.MessageId == c.id && reason == c.code && strings.Contains(text, c.words) }) {
			w.t.Errorf("dead is %s: %s, %q; want one of %q", d.MessageId, reason, text, want)
		}
		if d.Headers["traceparent"] != "kept" || d.DeliveryMode != amqp.Persistent || d.ContentType != "application/json" {
			w.t.Errorf("the message has changed: %+v", d)
		}
		if at, _ := d.Headers["x-bridge-dead-at"].(string); at == "" {
			w.t.Error("the dead message has no time")
		}
	}
}

// wantTaken checks that the mail server has taken these and no others, each once.
func (w *world) wantTaken(ids ...string) {
	w.t.Helper()
	times := make(map[string]int)
	for _, e := range w.mail.Taken() {
		times[e.Get("Message-Id")]++
	}
	for _, id := range ids {
		if n := times["<"+id+"@example.org>"]; n != 1 {
			w.t.Errorf("e-mail %s was taken %d times", id, n)
		}
	}
	if len(times) != len(ids) {
		w.t.Errorf("%d e-mails were taken, not %d", len(times), len(ids))
	}
}

// eventually waits for what no process will signal.
func (w *world) eventually(what string, holds func() bool, now ...func() string) {
	w.t.Helper()
	servertest.Eventually(w.t, what, holds, now...)
}

// A process is a gateway that has been started.
type process struct {
	*program.Process
	t *testing.T
}

// run starts the gateway without a world. No password, and no address but where it is
// asked for, may be in what it writes.
func run(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{program.Start(t, "email-gateway", args...), t}
	asked := slices.Contains(args, "list") || slices.Contains(args, "schema")
	t.Cleanup(func() {
		p.Kill()
		if all := p.Stdout.String() + p.Stderr.String(); strings.Contains(all, "s3cret") || strings.Contains(all, "ann@") && !asked {
			t.Errorf("a password or an address is in what it wrote:\n%s", all)
		}
	})
	return p
}

var addressLine = regexp.MustCompile(`msg=endpoints address=(\S+)`)

// get asks an endpoint.
func (p *process) get(path string) (code int, text string) {
	p.t.Helper()
	said := p.Read(&p.Stderr, "its address", addressLine.MatchString)
	address := addressLine.FindStringSubmatch(said)[1]
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	r.Close = true // no goroutine is left over
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return response.StatusCode, string(content)
}

// wantMetrics waits for these lines.
func (p *process) wantMetrics(lines ...string) {
	p.t.Helper()
	(&world{t: p.t}).eventually(fmt.Sprint("the metrics say ", lines), func() bool {
		_, text := p.get("/metrics")
		for _, line := range lines {
			if !strings.Contains(text, "\n"+line+"\n") {
				return false
			}
		}
		return true
	})
}

// count is how many messages have had an outcome.
func (p *process) count(outcome string) (n int) {
	p.t.Helper()
	_, text := p.get("/metrics")
	_, value, found := strings.Cut(text, fmt.Sprintf("\nemail_gateway_emails_total{outcome=%q} ", outcome))
	if _, err := fmt.Sscan(value, &n); !found || err != nil {
		p.t.Fatalf("no count of %s: %v\n%s", outcome, err, text)
	}
	return n
}

// wantDuplicate sends a copy of a message with which p has been dealing, and waits until
// p has told it for one.
func (p *process) wantDuplicate(w *world, id string) {
	p.t.Helper()
	w.eventually("the first has come to an end", func() bool {
		return p.count("sent")+p.count("duplicate")+p.count("doubtful") > 0
	})
	before := p.count("duplicate")
	w.publishAs(id, body)
	w.eventually("the copy is a duplicate", func() bool { return p.count("duplicate") > before })
}
