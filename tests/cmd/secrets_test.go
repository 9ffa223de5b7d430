package cmd_test

import (
	"context"
	"encoding/base64"
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

// A password with characters between its marked ends that mean something in a URL.
// The ends are themselves in every encoding but base64.
const (
	head   = "hEaDmArK"
	tail   = "tAiLmArK"
	secret = head + "4/ü ?#@%41:" + tail
)

// silent holds a command's whole output to having no part of the password in it.
func silent(t *testing.T, p *process) {
	t.Helper()
	all := strings.ToLower(p.Stdout.String() + p.Stderr.String())
	for _, text := range []string{
		head, tail,
		base64.StdEncoding.EncodeToString([]byte(secret))[:24],
		base64.StdEncoding.EncodeToString([]byte("\x00shop\x00" + secret))[:24], // as AMQP's PLAIN has it
		base64.StdEncoding.EncodeToString([]byte("shop:" + secret))[:24],
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
	parsed.User = url.UserPassword("shop", secret)
	return parsed.String()
}

func secretFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "url")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// The worker's whole life, with both URLs from files: work of every kind, servers
// that close and come back, the end by a dump of its stacks.
func TestNoPasswordInALongLife(t *testing.T) {
	t.Parallel()
	broker := servertest.StartRabbitMQ(t, nil)
	for _, args := range [][]string{{"add_user", "shop", secret}, {"set_permissions", "shop", ".*", "^(?!forbidden)", ".*"}} {
		if _, err := broker.Ctl(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	database := strictPostgres(t, "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n", false)
	kind := stage.Postgres
	kind.URL = func(testing.TB) string { return database.URL() }
	s := stage.On(t, kind, broker.URL(), bridge.Topology{Queue: "staging"})
	if _, err := s.DB.ExecContext(t.Context(), "CREATE ROLE shop LOGIN SUPERUSER PASSWORD '"+secret+"'"); err != nil {
		t.Fatal(err)
	}
	target := s.Queue("target", nil)
	must(t, s.Channel.ExchangeDeclare("forbidden", "topic", true, false, false, false, nil))

	valve := servertest.NewValve(t, broker.Addr())
	p := start(t, "verifier", "BRIDGE_QUEUE="+s.Topology.Queue, "BRIDGE_LOG_LEVEL=debug", "BRIDGE_UNROUTABLE=1ms", "BRIDGE_AUDIT=10",
		"BRIDGE_DATABASE_URL_FILE="+secretFile(t, login(t, database.URL())+"\n"),
		"BRIDGE_AMQP_URL_FILE="+secretFile(t, login(t, "amqp://"+valve.Addr()+"/")+"\r\n"))
	p.Hear("session started")
	s.RollBack(stage.To(target, "rolled back"))
	s.Commit(stage.To(target, "committed"), stage.To("nowhere", "unroutable"), bridge.Message{Exchange: "forbidden", RoutingKey: "x"})
	must(t, s.Channel.PublishWithContext(t.Context(), "", s.Topology.Queue, false, false, amqp.Publishing{Body: []byte("malformed")}))
	s.Receive(target, 1)
	s.Receive(s.Topology.DeadQueue(), 3)
	// The refused publish closes the channel; what was in flight there goes out again.
	s.Eventually("a copy is in the audit queue", func() bool { return s.Depth(s.Topology.AuditQueue()) >= 1 })

	said := func(words string) int { return strings.Count(p.Stderr.String(), words) }
	// endures has servers go away, which must show in vain attempts to start, and come back.
	endures := func(away func(), back server) {
		t.Helper()
		started, ended := said("session started"), said("session ended")
		away()
		servertest.Eventually(t, "attempts to start fail", func() bool { return said("session ended") > ended+1 })
		must(t, back.Restart(t.Context()))
		servertest.Eventually(t, "a new session", func() bool { return said("session started") > started })
	}
	endures(func() { _ = broker.Shutdown() }, broker) // the restart shows whether it has worked
	// Without a message nobody would miss the database.
	open, _ := s.Begin(stage.To(target, "open"))
	endures(func() { _ = database.Shutdown(); _ = open.Rollback() }, database)
	open, _ = s.Begin(stage.To(target, "open"))
	endures(func() { database.Kill(); valve.Cut(); _ = open.Rollback() }, database) // a broker that is killed says no more than a cut
	p.Signal(syscall.SIGQUIT)
	p.Await()
	if !strings.Contains(p.Stderr.String(), "goroutine ") {
		t.Error("no stacks")
	}
	silent(t, p)
}

type server interface{ Restart(context.Context) error }
