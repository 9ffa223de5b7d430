package bridgectl_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/driver"
	bridgemysql "github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/idempotency/pending"
	"github.com/twoqueue/twoqueue/idempotency/versions"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// receiver is an application's inbox, with a tool for its database.
type receiver struct {
	t     *testing.T
	db    *sql.DB
	inbox driver.Inbox
	*tool
}

// openReceiver creates the inbox's tables in an empty database and opens the inbox.
func openReceiver(t *testing.T, kind string, env ...string) *receiver {
	t.Helper()
	address, _ := databases[kind](t)
	b := withEnv(t, append(env, "BRIDGE_INBOX_URL="+address, "BRIDGE_INSECURE=true")...)
	b.must("migrate", "up", "--inbox")
	r := &receiver{t: t, tool: b}
	var err error
	switch kind {
	case "postgres":
		r.db, err = sql.Open("pgx", address)
	case "sqlite":
		r.db, err = sql.Open("sqlite", "file:"+strings.TrimPrefix(address, "sqlite:")+"?_pragma=busy_timeout(20000)&_txlock=immediate")
	case "mysql":
		parsed, parseErr := url.Parse(address)
		must(t, parseErr)
		config := mysql.NewConfig()
		config.User, config.Net, config.Addr, config.DBName = parsed.User.Username(), "tcp", parsed.Host, strings.TrimPrefix(parsed.Path, "/")
		config.Passwd, _ = parsed.User.Password()
		r.db, err = sql.Open("mysql", config.FormatDSN())
	default:
		r.db, err = sql.Open("sqlserver", address)
	}
	must(t, err)
	t.Cleanup(func() { must(t, r.db.Close()) })
	switch kind {
	case "postgres":
		r.inbox, err = postgres.OpenInbox(t.Context(), r.db)
	case "sqlite":
		r.inbox, err = sqlite.OpenInbox(t.Context(), r.db)
	case "mysql":
		r.inbox, err = bridgemysql.OpenInbox(t.Context(), r.db)
	default:
		r.inbox, err = sqlserver.OpenInbox(t.Context(), r.db)
	}
	must(t, err)
	return r
}

// effects returns an Effects that gives up at the first failure.
func (r *receiver) effects(consumer string) *pending.Effects {
	r.t.Helper()
	g, err := pending.New(r.inbox, consumer, &pending.Options{Attempts: 1, HandBack: true, Poll: 10 * time.Millisecond, Logger: quiet()})
	must(r.t, err)
	return g
}

// worker returns a Worker that gives up at the first failure.
func (r *receiver) worker(consumer string) *pending.Worker {
	r.t.Helper()
	w, err := pending.NewWorker(r.inbox, consumer, &pending.WorkerOptions{Attempts: 1, HandBack: true, Poll: 10 * time.Millisecond, Logger: quiet()})
	must(r.t, err)
	return w
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// settled is an Acknowledger for deliveries that no broker has sent.
type settled struct{}

func (settled) Ack(uint64, bool) error        { return nil }
func (settled) Nack(uint64, bool, bool) error { return nil }
func (settled) Reject(uint64, bool) error     { return nil }

func delivery(body string) amqp.Delivery {
	return amqp.Delivery{Acknowledger: settled{}, MessageId: uuid.NewString(), ContentType: "text/plain", Headers: amqp.Table{"colour": "red"}, Body: []byte(body)}
}

var errUnclear = errors.New("no answer")

// doubt leaves one doubtful message behind and returns its key.
func (r *receiver) doubt(consumer string) string {
	r.t.Helper()
	d := delivery("a doubtful message")
	must(r.t, r.effects(consumer).AtMostOnce(r.t.Context(), r.db, d, func(context.Context, amqp.Delivery) error { return errUnclear }))
	return d.MessageId
}

// accept stores a message in state ready and returns its key.
func (r *receiver) accept(consumer string) string {
	r.t.Helper()
	d := delivery("a long task")
	must(r.t, r.worker(consumer).Accept(r.t.Context(), r.db, d))
	return d.MessageId
}

// work runs Work until stop is called or the test ends.
func (r *receiver) work(consumer string, fn pending.Handler) (w *pending.Worker, stop func()) {
	w = r.worker(consumer)
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = w.Work(ctx, r.db, fn)
	}()
	stop = func() { cancel(); <-ended }
	r.t.Cleanup(stop)
	return w, stop
}

// fail leaves one failed message behind and returns its key.
func (r *receiver) fail(consumer string) string {
	r.t.Helper()
	key := r.accept(consumer)
	_, stop := r.work(consumer, func(context.Context, *sql.Tx, amqp.Delivery) error { return errors.New("out of paper") })
	servertest.Eventually(r.t, "the message has failed", func() bool { return r.state(consumer, key) == "failed" })
	stop()
	return key
}

type pendingList struct {
	Messages []struct {
		Consumer, Key, State, Error string
		Attempts                    int
		Stored                      bool
		Since                       time.Time
	}
	Limited bool
	Counts  []struct {
		Consumer, State string
		Messages        int
	}
}

// state returns the state of a pending message; "" if it is not pending.
func (r *receiver) state(consumer, key string) string {
	r.t.Helper()
	for _, state := range []pending.State{pending.Doubtful, pending.Failed, pending.Ready, pending.Started} {
		pending, err := r.effects(consumer).List(r.t.Context(), r.db, state, "", 100)
		must(r.t, err)
		for _, p := range pending {
			if p.Key == key {
				return string(p.State)
			}
		}
	}
	return ""
}

// refused runs a decision that must fail, and returns the reason.
func (r *receiver) refused(args ...string) string {
	r.t.Helper()
	result := r.run(append(args, "-o", "json")...)
	var report struct {
		NotDone  int `json:"not_done"`
		Messages []struct {
			Done bool
			Why  string
		}
	}
	if err := json.Unmarshal([]byte(result.Stdout), &report); err != nil || result.Code != 1 || report.NotDone != 1 || len(report.Messages) != 1 || report.Messages[0].Done {
		r.t.Fatalf("%v: exit code %d, %v, %s%s", args, result.Code, err, result.Stdout, result.Stderr)
	}
	return report.Messages[0].Why
}

func (r *receiver) wantRefused(words string, args ...string) {
	r.t.Helper()
	if why := r.refused(args...); !strings.Contains(why, words) {
		r.t.Errorf("%v says %q, not %q", args, why, words)
	}
}

// Two consumers have a doubtful and a failed message each. An operator decides about each of
// them, on every database, and a running receiver carries the decisions out. No decision touches a
// message whose effect is under way.
func TestAnOperatorDecidesAboutPendingMessages(t *testing.T) {
	t.Parallel()
	for kind := range databases {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := openReceiver(t, kind)
			if text := r.must("pending", "list"); text != "0 messages listed\n" {
				t.Errorf("of an empty inbox it says %q", text)
			}
			sent, unsent, failed, ready := r.doubt("mail"), r.doubt("mail"), r.fail("print"), r.accept("print")
			var list pendingList
			r.json(&list, "pending", "list")
			if len(list.Messages) != 3 || len(list.Counts) != 3 || list.Limited {
				t.Fatalf("listed: %+v", list)
			}
			for _, m := range list.Messages {
				want := []string{"mail", "doubtful", "no answer"}
				if m.Key == failed {
					want = []string{"print", "failed", "out of paper"}
				}
				if m.Consumer != want[0] || m.State != want[1] || !strings.Contains(m.Error, want[2]) || m.Attempts != 1 || !m.Stored || time.Since(m.Since).Abs() > time.Hour {
					t.Errorf("listed: %+v", m)
				}
			}
			if r.json(&list, "pending", "list", "--limit=1"); len(list.Messages) != 1 || !list.Limited {
				t.Errorf("with a limit: %+v", list)
			}
			if text := r.must("pending", "show", sent); !strings.Contains(text, "a doubtful message") || !strings.Contains(text, "header colour  red") {
				t.Errorf("show says %s", text)
			}

			// A dry run changes nothing, and an action that removes a message requires --yes.
			if text := r.must("pending", "done", sent, "--dry-run"); !strings.Contains(text, "would be done (is doubtful)") {
				t.Errorf("dry run: %s", text)
			}
			r.fails(2, "confirm with --yes", "pending", "done", sent)
			r.fails(2, "needs --consumer and --state", "pending", "retry", "--all", "--yes")
			if state := r.state("mail", sent); state != "doubtful" {
				t.Errorf("after a dry run it is %q", state)
			}

			if text := r.must("pending", "done", sent, "--yes"); !strings.Contains(text, "1 message done, 0 not") {
				t.Errorf("done: %s", text)
			}
			r.wantRefused("no consumer has it pending", "pending", "done", sent, "--yes")
			r.wantRefused("it is done", "pending", "retry", sent, "--consumer=mail")
			r.wantRefused("has not claimed it", "pending", "retry", uuid.NewString(), "--consumer=mail")

			// An effect that may be under way cannot be decided about.
			g, d := r.effects("call"), delivery("")
			began, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error)
			go func() {
				ended <- g.AtMostOnce(t.Context(), r.db, d, func(context.Context, amqp.Delivery) error { close(began); <-goOn; return nil })
			}()
			servertest.Next(t, "the effect has begun", began)
			r.wantRefused("its effect may be under way", "pending", "retry", d.MessageId)
			r.wantRefused("its effect may be under way", "pending", "done", d.MessageId, "--yes")
			close(goOn)
			must(t, servertest.Next(t, "the effect has ended", ended))
			if stats := g.Stats(); stats.Handled != 1 {
				t.Errorf("%+v", stats)
			}

			if text := r.must("pending", "retry", unsent); !strings.Contains(text, "1 message ready, 0 not") {
				t.Errorf("retry: %s", text)
			}
			resumed := make(chan string)
			ctx, cancel := context.WithCancel(t.Context())
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				_ = r.effects("mail").Resume(ctx, r.db, func(_ context.Context, d amqp.Delivery) error { resumed <- d.MessageId; return nil })
			}()
			if key := servertest.Next(t, "the effect is resumed", resumed); key != unsent {
				t.Errorf("%s is resumed, not %s", key, unsent)
			}
			cancel()
			<-stopped

			if text := r.must("pending", "retry", "--all", "--consumer=print", "--state=failed", "--yes"); !strings.Contains(text, "1 message ready, 0 not") {
				t.Errorf("retry --all: %s", text)
			}
			worked := make(chan string)
			_, stop := r.work("print", func(_ context.Context, _ *sql.Tx, d amqp.Delivery) error { worked <- d.MessageId; return nil })
			got := []string{servertest.Next(t, "a message is worked off", worked), servertest.Next(t, "a second message is worked off", worked)}
			if !slices.Contains(got, failed) || !slices.Contains(got, ready) {
				t.Errorf("%v are worked off", got)
			}
			servertest.Eventually(t, "nothing is pending", func() bool { return r.state("print", failed)+r.state("print", ready)+r.state("mail", unsent) == "" })
			if text := r.must("pending", "list"); text != "0 messages listed\n" {
				t.Errorf("in the end: %s", text)
			}
			stop()
		})
	}
}

// If two consumers have the same key, a decision about it names one consumer.
func TestADecisionNamesTheConsumerOfAKeyThatSeveralHave(t *testing.T) {
	t.Parallel()
	r := openReceiver(t, "sqlite")
	d := delivery("")
	for _, consumer := range []string{"a", "b"} {
		must(t, r.effects(consumer).AtMostOnce(t.Context(), r.db, d, func(context.Context, amqp.Delivery) error { return errUnclear }))
	}
	r.fails(2, "several have message", "pending", "retry", d.MessageId)
	r.must("pending", "retry", d.MessageId, "--consumer=a")
	if a, b := r.state("a", d.MessageId), r.state("b", d.MessageId); a != "ready" || b != "doubtful" {
		t.Errorf("they are %s and %s", a, b)
	}
}

// blocked waits until a process waits for a lock in the PostgreSQL database.
func (r *receiver) blocked() {
	r.t.Helper()
	servertest.Eventually(r.t, "the command waits for the worker", func() (waits bool) {
		must(r.t, r.db.QueryRowContext(r.t.Context(),
			`SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits))
		return waits
	})
}

// An operator decides while a worker is handling the message. If the handler succeeds, its
// effects are there once and the command reports that the decision came too late. If it fails,
// the decision applies.
func TestADecisionWaitsForTheWorkerThatHandlesTheMessage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		action  string
		failing bool
		code    int
		says    string
		runs    int // runs of the handler
		effects int
	}{
		"done, it is handled":  {"done", false, 1, "no: it is done", 1, 1},
		"retry, it is handled": {"retry", false, 1, "no: it is done", 1, 1},
		"done, it fails":       {"done", true, 0, "1 message done", 1, 0},
		"retry, it fails":      {"retry", true, 0, "1 message ready", 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := openReceiver(t, "postgres")
			_, err := r.db.ExecContext(t.Context(), `CREATE TABLE effects (key text)`)
			must(t, err)
			key := r.accept("print")
			began, goOn := make(chan struct{}), make(chan error)
			runs := 0
			g, stop := r.work("print", func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
				if runs++; runs == 1 {
					began <- struct{}{}
				}
				if _, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, d.MessageId); err != nil {
					return err
				}
				if runs == 1 {
					return <-goOn
				}
				return nil
			})
			servertest.Next(t, "the worker has the message", began)
			p := r.start("pending", c.action, key, "--consumer=print", "--yes")
			r.blocked()
			if c.failing {
				goOn <- errors.New("out of paper")
			} else {
				goOn <- nil
			}
			code, said := p.Await(), p.Stdout.String()
			if c.failing && strings.Contains(said, "no: it has just changed to failed; check again") { // the worker was first
				again := r.run("pending", c.action, key, "--consumer=print", "--yes")
				code, said = again.Code, again.Stdout
			}
			if code != c.code || !strings.Contains(said, c.says) {
				t.Errorf("exit code %d, %s%s", code, said, &p.Stderr)
			}
			servertest.Eventually(t, "the message is done", func() bool { return r.state("print", key) == "" })
			stop()
			var effects int
			must(t, r.db.QueryRowContext(t.Context(), `SELECT count(*) FROM effects`).Scan(&effects))
			if runs != c.runs || effects != c.effects || g.Stats().Handled != uint64(c.effects) {
				t.Errorf("the handler ran %d times, with %d effects, and %+v", runs, effects, g.Stats())
			}
		})
	}
}

// A hanging handler does not hang the command.
func TestADecisionReportsAWorkerThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"postgres", "mysql"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := openReceiver(t, kind)
			key := r.accept("print")
			began, goOn := make(chan struct{}), make(chan struct{})
			g, _ := r.work("print", func(context.Context, *sql.Tx, amqp.Delivery) error { close(began); <-goOn; return nil })
			servertest.Next(t, "the worker has the message", began)
			r.wantRefused("no answer within 1s: a worker's transaction may have locked the row", "pending", "done", key, "--yes", "--wait=1s")
			close(goOn)
			servertest.Eventually(t, "the message is handled", func() bool { return g.Stats().Handled == 1 })
			r.wantRefused("it is done", "pending", "done", key, "--yes", "--consumer=print")
		})
	}
}

// event returns an event of an entity, with its version as body.
func event(version string) amqp.Delivery {
	d := delivery(version)
	d.Type = "customer/17"
	return d
}

func versionOf(d amqp.Delivery) (string, int64, error) {
	var version int64
	err := json.Unmarshal(d.Body, &version)
	return d.Type, version, err
}

// An entity waits for version 2, which does not come, and then for version 4, which cannot be
// handled. An operator skips version 2 and has version 4 put into the dead queue.
func TestAnOperatorSkipsVersionsThatDoNotCome(t *testing.T) {
	t.Parallel()
	for kind := range databases {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			amqpURL := servertest.Vhost(t)
			r := openReceiver(t, kind, "BRIDGE_AMQP_URL="+amqpURL)
			ordered, err := versions.NewOrdered(r.inbox, "crm", versionOf, &versions.OrderedOptions{
				Options: versions.Options{Attempts: 1, HandBack: true, Logger: quiet()}})
			must(t, err)
			var handled []string
			handle := func(version string) {
				t.Helper()
				must(t, ordered.Handle(t.Context(), r.db, event(version), func(_ context.Context, _ *sql.Tx, d amqp.Delivery) error {
					if string(d.Body) == "4" {
						return errors.New("cannot be handled")
					}
					handled = append(handled, string(d.Body))
					return nil
				}))
			}
			for _, version := range []string{"1", "3", "4", "5"} {
				handle(version)
			}
			var list struct {
				Gaps []struct {
					Consumer, Entity string
					Missing, Kept    int
					First            int `json:"first_kept"`
				}
			}
			if r.json(&list, "gaps", "list"); len(list.Gaps) != 1 || list.Gaps[0].Consumer != "crm" || list.Gaps[0].Entity != "customer/17" ||
				list.Gaps[0].Missing != 2 || list.Gaps[0].First != 3 || list.Gaps[0].Kept != 3 {
				t.Fatalf("gaps: %+v", list)
			}
			skip := func(more ...string) []string {
				return append([]string{"gaps", "skip", "customer/17", "--consumer=crm"}, more...)
			}
			r.fails(2, "confirm with --yes", skip("--through=2")...)
			r.fails(1, "does not wait for this version", skip("--through=1", "--yes")...)
			// A dry run fails where the skip would.
			r.fails(1, "does not wait for this version", skip("--through=1", "--dry-run")...)
			r.fails(1, "move it with --dead-queue NAME, or delete it with --discard", skip("--through=4", "--dry-run")...)
			if text := r.must(skip("--through=4", "--dry-run", "--discard")...); !strings.Contains(text, "would continue after version 4; 2 kept events given up") {
				t.Errorf("dry run: %s", text)
			}
			r.must(skip("--through=2", "--yes")...)
			handle("2") // late, so a duplicate
			if !slices.Equal(handled, []string{"1", "3"}) {
				t.Errorf("handled: %v", handled)
			}
			r.fails(1, "move it with --dead-queue NAME, or delete it with --discard", skip("--through=4", "--yes")...)
			conn, err := amqp.Dial(amqpURL)
			must(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			channel, err := conn.Channel()
			must(t, err)
			_, err = channel.QueueDeclare("crm.dead", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
			must(t, err)
			if text := r.must(skip("--through=4", "--yes", "--dead-queue=crm.dead")...); !strings.Contains(text, "continues after version 4; 1 kept event given up") {
				t.Errorf("skip: %s", text)
			}
			var dead struct {
				Messages []struct{ Reason, Text string }
			}
			if r.json(&dead, "dead", "list", "--queue=crm"); len(dead.Messages) != 1 || dead.Messages[0].Reason != "failed" || !strings.Contains(dead.Messages[0].Text, "an operator has skipped the versions") {
				t.Errorf("dead: %+v", dead)
			}
			handle("2")
			if !slices.Equal(handled, []string{"1", "3", "5"}) {
				t.Errorf("handled: %v", handled)
			}
			handle("7")
			r.must(skip("--through=7", "--yes", "--discard")...)
			if text := r.must("gaps", "list"); text != "0 entities wait\n" {
				t.Errorf("in the end: %s", text)
			}
		})
	}
}

// One version that is far too high makes an entity ignore all others, until an operator resets
// its mark.
func TestAnOperatorResetsAMark(t *testing.T) {
	t.Parallel()
	for kind := range databases {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := openReceiver(t, kind)
			latest, err := versions.NewLatest(r.inbox, "search", versionOf, &versions.Options{HandBack: true, Logger: quiet()})
			must(t, err)
			handle := func(version string) {
				t.Helper()
				must(t, latest.Handle(t.Context(), r.db, event(version), func(context.Context, *sql.Tx) error { return nil }))
			}
			handle("41")
			handle("4200000000")
			handle("42")
			if stats := latest.Stats(); stats.Handled != 2 || stats.Stale != 1 {
				t.Fatalf("%+v", stats)
			}
			if text := r.must("marks", "list"); !strings.Contains(text, "search    customer/17  4200000000\n") || !strings.Contains(text, "\n1 mark\n") {
				t.Errorf("marks: %s", text)
			}
			reset := func(more ...string) []string {
				return append([]string{"marks", "reset", "customer/17", "--consumer=search"}, more...)
			}
			r.fails(2, "--to: must have", reset("--yes")...)
			r.fails(2, "confirm with --yes", reset("--to=41")...)
			r.fails(1, "has another form", reset("--to=forty-one", "--yes")...)
			r.fails(1, "have no mark", "marks", "reset", "customer/18", "--consumer=search", "--to=1", "--yes")
			if text := r.must(reset("--to=41", "--dry-run")...); !strings.Contains(text, "would be reset from 4200000000 to 41") {
				t.Errorf("dry run: %s", text)
			}
			handle("42")
			if text := r.must(reset("--to=41", "--yes")...); !strings.Contains(text, "consumer search, customer/17: reset from 4200000000 to 41") {
				t.Errorf("reset: %s", text)
			}
			handle("42")
			if stats := latest.Stats(); stats.Handled != 3 || stats.Stale != 2 {
				t.Errorf("%+v", stats)
			}
			// The entity of an Ordered is refused: kept events below the mark would never be
			// handled.
			ordered, err := versions.NewOrdered(r.inbox, "crm", versionOf, &versions.OrderedOptions{Options: versions.Options{HandBack: true, Logger: quiet()}})
			must(t, err)
			must(t, ordered.Handle(t.Context(), r.db, event("3"), func(context.Context, *sql.Tx, amqp.Delivery) error { return nil }))
			r.fails(1, "it has 1 kept event: use gaps skip", "marks", "reset", "customer/17", "--consumer=crm", "--to=4", "--force", "--yes")
		})
	}
}

// The printed rights of an operator suffice for all of this, and for no more on these tables.
func TestThePrintedRightsAreEnoughForAnOperatorOfReceivers(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"postgres", "mysql"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := openReceiver(t, kind)
			address := strings.TrimPrefix(r.env[slices.IndexFunc(r.env, func(v string) bool { return strings.HasPrefix(v, "BRIDGE_INBOX_URL=") })], "BRIDGE_INBOX_URL=")
			owner := r.also("BRIDGE_DATABASE_URL=" + address)
			owner.must("migrate", "up", "--ledger")
			login := "o_" + strings.ReplaceAll(uuid.NewString(), "-", "")[:20]
			create := `CREATE ROLE ` + login + ` LOGIN PASSWORD 's3'`
			drop := []string{`DROP OWNED BY ` + login, `DROP ROLE ` + login}
			if kind == "mysql" {
				create, drop = `CREATE USER `+login+` IDENTIFIED BY 's3'`, []string{`DROP USER ` + login}
			}
			exec := func(statement string) {
				t.Helper()
				_, err := r.db.ExecContext(context.WithoutCancel(t.Context()), statement)
				must(t, err)
			}
			exec(create)
			t.Cleanup(func() {
				for _, statement := range drop {
					exec(statement)
				}
			})
			for line := range strings.Lines(owner.must("grants", "operator", "--login", login)) {
				if strings.HasPrefix(line, "GRANT") {
					exec(line)
				}
			}
			theirs, err := url.Parse(address)
			must(t, err)
			theirs.User = url.UserPassword(login, "s3")
			b := r.also("BRIDGE_INBOX_URL=" + theirs.String())

			sent, failed := r.doubt("mail"), r.fail("print")
			b.must("pending", "list")
			b.must("pending", "show", sent)
			b.must("pending", "done", sent, "--yes")
			b.must("pending", "retry", failed)
			ordered, err := versions.NewOrdered(r.inbox, "crm", versionOf, &versions.OrderedOptions{Options: versions.Options{HandBack: true, Logger: quiet()}})
			must(t, err)
			must(t, ordered.Handle(t.Context(), r.db, event("3"), func(context.Context, *sql.Tx, amqp.Delivery) error { return nil }))
			b.must("gaps", "list")
			b.must("gaps", "skip", "customer/17", "--consumer=crm", "--through=3", "--discard", "--yes")
			b.must("marks", "list")
			b.must("marks", "reset", "customer/17", "--consumer=crm", "--to=1", "--yes")
			b.must("marks", "reset", "customer/18", "--consumer=crm", "--to=1", "--force", "--yes")
		})
	}
}
