package cmd_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// The password has, between its marked ends, characters with a meaning in URLs. Every encoding
// except base64 leaves the ends unchanged.
const (
	head   = "hEaDmArK"
	tail   = "tAiLmArK"
	secret = head + "4/ü ?#@%41:" + tail
)

// silent checks that a command's whole output contains no part of the password.
func silent(t *testing.T, p *process) {
	t.Helper()
	all := strings.ToLower(p.Stdout.String() + p.Stderr.String())
	for _, text := range []string{
		head, tail,
		base64.StdEncoding.EncodeToString([]byte(secret))[:24],
		base64.StdEncoding.EncodeToString([]byte("\x00till\x00" + secret))[:24], // as AMQP's PLAIN mechanism encodes it
		base64.StdEncoding.EncodeToString([]byte("till:" + secret))[:24],
	} {
		if strings.Contains(all, strings.ToLower(text)) {
			t.Errorf("the output has %q in it:\n%s%s", text, p.Stdout.String(), p.Stderr.String())
		}
	}
}

func login(t *testing.T, address string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	must(t, err)
	parsed.User = url.UserPassword("till", secret)
	return parsed.String()
}

func secretFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "url")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// erlang returns a text as an Erlang binary.
func erlang(text string) string {
	numbers := strings.Trim(fmt.Sprint([]byte(text)), "[]")
	return "<<" + strings.ReplaceAll(numbers, " ", ",") + ">>"
}

// reasonOfBroker is the broker's reason for the end of a connection.
const reasonOfBroker = "a reason of its own"

// userTill creates the user till, with the password, in a vhost of the shared broker. No other package
// that is tested at the same time has a user with this name. goodbye closes the user's connections
// with a reason.
func userTill(t *testing.T, vhostURL string) (goodbye func()) {
	t.Helper()
	broker := servertest.RabbitMQ(t)
	vhost, err := url.Parse(vhostURL)
	must(t, err)
	eval := func(format string, args ...any) {
		if _, err := broker.Eval(context.Background(), format, args...); err != nil {
			t.Fatal(err)
		}
	}
	eval(`rabbit_auth_backend_internal:add_user(<<"till">>, %s, <<"test">>)`, erlang(secret))
	t.Cleanup(func() { eval(`rabbit_auth_backend_internal:delete_user(<<"till">>, <<"test">>)`) })
	eval(`rabbit_auth_backend_internal:set_permissions(<<"till">>, %s, <<".*">>, <<"^(?!forbidden)">>, <<".*">>, <<"test">>)`,
		erlang(strings.TrimPrefix(vhost.Path, "/")))
	return func() {
		// This fails if the verifier, having lost its first connection, closes its second one
		// meanwhile.
		eval(`catch rabbit_networking:close_all_user_connections(<<"till">>, "%s")`, reasonOfBroker)
	}
}

// A verifier runs its whole life with both URLs from files: work of every kind, servers that
// close and come back, and an end by a dump of its stacks.
func TestNoPasswordInALongLife(t *testing.T) {
	t.Parallel()
	address := servertest.Vhost(t)
	goodbye := userTill(t, address)
	database := strictPostgres(t)
	kind := stage.Postgres
	kind.URL = func(testing.TB) string { return database.URL() }
	s := stage.On(t, kind, address, bridge.Topology{Queue: "staging"})
	refused(t, 4, "BRIDGE_DATABASE_URL", "correct user or password", "BRIDGE_DATABASE_URL="+login(t, database.URL()), "BRIDGE_AMQP_URL="+address)
	if _, err := s.DB.ExecContext(t.Context(), "CREATE ROLE till LOGIN SUPERUSER PASSWORD '"+secret+"'"); err != nil {
		t.Fatal(err)
	}
	target := s.Queue("target", nil)
	must(t, s.Channel.ExchangeDeclare("forbidden", "topic", true, false, false, false, nil))

	valve, through := servertest.Through(t, address)
	p := start(t, "verifier", "BRIDGE_QUEUE="+s.Topology.Queue, "BRIDGE_LOG_LEVEL=debug", "BRIDGE_UNROUTABLE=1ms", "BRIDGE_AUDIT=10",
		"BRIDGE_DATABASE_URL_FILE="+secretFile(t, login(t, database.URL())+"\n"),
		"BRIDGE_AMQP_URL_FILE="+secretFile(t, login(t, through)+"\r\n"))
	p.Hear("session started")
	s.RollBack(stage.To(target, "rolled back"))
	s.Commit(stage.To(target, "committed"), stage.To("nowhere", "unroutable"), bridge.Message{Exchange: "forbidden", RoutingKey: "x"})
	must(t, s.Channel.PublishWithContext(t.Context(), "", s.Topology.Queue, false, false, amqp.Publishing{Body: []byte("malformed")}))
	s.Receive(target, 1)
	s.Receive(s.Topology.DeadQueue(), 3)
	// The refused publish closes the channel. The messages in flight on it are published again.
	s.Eventually("a copy is in the audit queue", func() bool { return s.Depth(s.Topology.AuditQueue()) >= 1 })

	said := func(words string) int { return strings.Count(p.Stderr.String(), words) }
	// endures stops servers, waits until attempts to start a session fail, and starts the servers
	// again.
	endures := func(away, back func()) {
		t.Helper()
		started, none := said("session started"), said("no session")
		away()
		servertest.Eventually(t, "attempts to start fail", func() bool { return said("no session") > none+1 })
		back()
		servertest.Eventually(t, "a new session", func() bool { return said("session started") > started })
	}
	broker := servertest.RabbitMQ(t).Addr()
	ended := said("session ended")
	goodbye()
	servertest.Eventually(t, "the broker has ended a session", func() bool { return said("session ended") > ended })
	named := false
	for line := range strings.Lines(p.Stderr.String()) {
		named = named || strings.Contains(line, "session ended") && strings.Contains(line, reasonOfBroker)
	}
	if !named {
		t.Errorf("the end of the session does not name the broker's reason %q:\n%s", reasonOfBroker, p.Stderr.String())
	}
	endures(func() { valve.Avoid(broker) }, func() { valve.Avoid("") })
	restart := func() { must(t, database.Restart(t.Context())) }
	// Without a message the verifier would not notice that the database is away.
	open, _ := s.Begin(stage.To(target, "open"))
	endures(func() { _ = database.Shutdown(); _ = open.Rollback() }, restart)
	open, _ = s.Begin(stage.To(target, "open"))
	endures(func() { database.Kill(); valve.Cut(); _ = open.Rollback() }, restart) // a killed broker closes no connection in order, as a cut does
	p.Signal(syscall.SIGQUIT)
	p.Await()
	if !strings.Contains(p.Stderr.String(), "goroutine ") {
		t.Error("no stacks")
	}
	silent(t, p)
}
