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
	"github.com/twoqueue/twoqueue/tests/servers"
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

// fails runs a worker that must end by itself, and silently.
func fails(t *testing.T, args ...string) *process {
	t.Helper()
	p := start(t, "verifier", args...)
	if code := p.Await(); code == 0 {
		t.Errorf("exit code 0")
	}
	if p.Stderr.String() == "" {
		t.Error("nothing is said")
	}
	silent(t, p)
	return p
}

func login(t *testing.T, address string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	parsed.User = url.UserPassword("shop", secret)
	return parsed.String()
}

func secretFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
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
	rules := filepath.Join(openDir(t), "pg_hba.conf")
	if err := os.WriteFile(rules, []byte("host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	database := servertest.StartPostgres(t, &servers.PostgresOptions{Config: []string{"hba_file = '" + rules + "'"}})
	kind := stage.Postgres
	kind.URL = func(testing.TB) string { return database.URL() }
	s := stage.On(t, kind, broker.URL(), bridge.Topology{Queue: "staging"})
	if _, err := s.DB.ExecContext(t.Context(), "CREATE ROLE shop LOGIN SUPERUSER PASSWORD '"+secret+"'"); err != nil {
		t.Fatal(err)
	}
	target := s.Queue("target", nil)
	if err := s.Channel.ExchangeDeclare("forbidden", "topic", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}

	valve := servertest.NewValve(t, broker.Addr())
	p := start(t, "verifier", "BRIDGE_QUEUE="+s.Topology.Queue, "BRIDGE_LOG_LEVEL=debug", "BRIDGE_UNROUTABLE=1ms", "BRIDGE_AUDIT=10",
		"BRIDGE_DATABASE_URL_FILE="+secretFile(t, login(t, database.URL())+"\n"),
		"BRIDGE_AMQP_URL_FILE="+secretFile(t, login(t, "amqp://"+valve.Addr()+"/")+"\r\n"))
	p.Hear("session started")
	s.RollBack(stage.To(target, "rolled back"))
	s.Commit(stage.To(target, "committed"), stage.To("nowhere", "unroutable"), bridge.Message{Exchange: "forbidden", RoutingKey: "x"})
	if err := s.Channel.PublishWithContext(t.Context(), "", s.Topology.Queue, false, false, amqp.Publishing{Body: []byte("malformed")}); err != nil {
		t.Fatal(err)
	}
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
		if err := back.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
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

// Every way of not getting in.
func TestNoPasswordWhenNobodyLetsUsIn(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	sqlServer := stage.New(t, stage.SQLServer)
	migrated := "BRIDGE_DATABASE_URL=" + s.DatabaseURL
	closed := "127.0.0.1:1"
	rules := filepath.Join(openDir(t), "pg_hba.conf")
	if err := os.WriteFile(rules, []byte("host all all 127.0.0.1/32 scram-sha-256\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	strict := servertest.StartPostgres(t, &servers.PostgresOptions{Fast: true, Config: []string{"hba_file = '" + rules + "'"}})
	for name, args := range map[string][]string{
		"broker refuses":          {migrated, "BRIDGE_AMQP_URL=" + login(t, s.AMQP)},
		"broker away":             {migrated, "BRIDGE_AMQP_URL=" + login(t, "amqp://"+closed+"/")},
		"broker does not speak":   {migrated, "BRIDGE_AMQP_URL=" + login(t, "amqps://"+hostOf(t, s.AMQP)+"/")},
		"PostgreSQL refuses":      {"BRIDGE_DATABASE_URL=" + login(t, strict.URL())},
		"PostgreSQL away":         {"BRIDGE_DATABASE_URL=" + login(t, "postgres://"+closed+"/db")},
		"PostgreSQL is another":   {"BRIDGE_DATABASE_URL=" + login(t, "postgres://"+hostOf(t, s.AMQP)+"/db?connect_timeout=2")},
		"PostgreSQL, one option":  {"BRIDGE_DATABASE_URL=" + login(t, strict.URL()+"&sslmode=perhaps&connect_timeout=soon")},
		"MariaDB refuses":         {"BRIDGE_DATABASE_URL=" + login(t, "mysql://"+servertest.MariaDB(t).Addr()+"/db")},
		"MariaDB away":            {"BRIDGE_DATABASE_URL=" + login(t, "mysql://"+closed+"/db")},
		"MariaDB, one option":     {"BRIDGE_DATABASE_URL=" + login(t, "mysql://"+closed+"/db?timeout=soon")},
		"SQL Server refuses":      {"BRIDGE_DATABASE_URL=" + login(t, sqlServer.DatabaseURL)},
		"SQL Server away":         {"BRIDGE_DATABASE_URL=" + login(t, "sqlserver://"+closed+"?database=db")},
		"SQL Server, one option":  {"BRIDGE_DATABASE_URL=" + login(t, "sqlserver://"+closed+"?encrypt=perhaps")},
		"URL in the file's place": {migrated, "BRIDGE_AMQP_URL_FILE=" + login(t, s.AMQP)},
		"both":                    {migrated, "BRIDGE_AMQP_URL=" + login(t, s.AMQP), "BRIDGE_AMQP_URL_FILE=" + secretFile(t, login(t, s.AMQP))},
		"two lines in the file":   {migrated, "BRIDGE_AMQP_URL_FILE=" + secretFile(t, login(t, s.AMQP)+"\n"+login(t, s.AMQP))},
		"mistyped variable":       {migrated, "BRIDGE_AMQPURL=" + login(t, s.AMQP)},
		"as an argument":          {migrated, "-amqp-url=" + login(t, s.AMQP)},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(strings.Join(args, " "), "BRIDGE_AMQP") {
				args = append(args, "BRIDGE_AMQP_URL="+s.AMQP)
			}
			fails(t, args...)
		})
	}
	help := start(t, "verifier", "-help", "BRIDGE_AMQP_URL="+login(t, s.AMQP), "BRIDGE_DATABASE_URL="+login(t, s.DatabaseURL))
	if code := help.Await(); code != 0 {
		t.Errorf("-help: exit code %d", code)
	}
	silent(t, help)
}

// URLs whose password nobody has encoded: a part of it may look like host, port, path,
// parameter or fragment.
func TestNoPasswordOfAnUnencodedURL(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"amqp", "postgres", "mysql", "sqlserver"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			ledger := emptyLedger(t)
			for _, first := range []string{head, "4711"} { // the second looks like a port
				for _, special := range "/?#@%:[]\\ \n\x7f" {
					bad := fmt.Sprintf("%s://shop:%s%c%s@127.0.0.1:1/db", scheme, first, special, tail)
					args := []string{"BRIDGE_DATABASE_URL=" + bad, "BRIDGE_AMQP_URL=amqp://127.0.0.1:1/"}
					if scheme == "amqp" {
						args = []string{"BRIDGE_DATABASE_URL=" + ledger, "BRIDGE_AMQP_URL=" + bad}
					}
					p := fails(t, args...)
					if strings.Contains(p.Stderr.String(), "4711") {
						t.Errorf("%q: a part of the password is told: %s", bad, p.Stderr.String())
					}
				}
			}
		})
	}
}

// emptyLedger is the URL of a SQLite file with the tables.
func emptyLedger(t *testing.T) string {
	t.Helper()
	address := "sqlite:" + filepath.Join(t.TempDir(), "ledger.db")
	if p := start(t, "verifier", "-migrate", "BRIDGE_DATABASE_URL="+address); p.Await() != 0 {
		t.Fatal("no tables")
	}
	return address
}
