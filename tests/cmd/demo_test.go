package cmd_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // driver

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// demo starts a demo whose temporary files are in a folder of its own.
func demo(t *testing.T, args ...string) (p *process, temporary string) {
	t.Helper()
	temporary = t.TempDir()
	return start(t, "demo", append([]string{"TMPDIR=" + temporary}, args...)...), temporary
}

// gone holds the demo to leaving neither files nor processes.
func gone(t *testing.T, temporary string, filesToo bool) {
	t.Helper()
	if files, _ := os.ReadDir(temporary); filesToo && len(files) > 0 {
		t.Errorf("left behind: %v", files)
	}
	servertest.Eventually(t, "no process of the demo is left", func() bool {
		environments, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, path := range environments {
			if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), temporary) {
				return false
			}
		}
		return true
	})
}

func TestDemo(t *testing.T) {
	for _, kind := range stage.Databases {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, kind) // for a look at what is left
			args := []string{"-orders=600", "BRIDGE_AMQP_URL=" + s.AMQP}
			if kind.Name == stage.Postgres.Name {
				args = append(args, "BRIDGE_DATABASE_URL="+s.DatabaseURL)
			}
			p, temporary := demo(t, args...)
			if code := p.Await(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			out := p.Stdout.String()
			for _, words := range []string{"committed = received", "rolled back = dropped", "duplicates met and absorbed",
				"e-mails in doubt, then resolved", "slowest open transaction", "commit to target, p50 and p99",
				"none twice and no other.", "the mail server's log resolved them."} {
				if !strings.Contains(out, words) {
					t.Errorf("it does not say %q", words)
				}
			}
			for line := range strings.Lines(out) {
				if len([]rune(line)) > 81 || strings.ContainsAny(line, "\r\x1b") {
					t.Errorf("not a plain line of 80 characters: %q", line)
				}
			}
			if p.Stderr.String() != "" {
				t.Errorf("standard error: %s", p.Stderr.String())
			}
			gone(t, temporary, true)
			_, name, _ := strings.Cut(out, "queues ")
			name, _, _ = strings.Cut(name, "...")
			for _, suffix := range []string{"", ".waiting", ".dead", ".emails", ".emails.dead"} {
				if exists(t, s, name+suffix) {
					t.Errorf("the queue %s%s is left", name, suffix)
				}
			}
			if kind.Name == stage.Postgres.Name {
				noSchemas(t, s.DB)
			}
		})
	}
}

func noSchemas(t *testing.T, db *sql.DB) {
	t.Helper()
	var n int
	if err := db.QueryRow(`SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'demo%'`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d schemas are left, %v", n, err)
	}
}

// Ctrl-C takes everything down, the private RabbitMQ included.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	servertest.RabbitMQ(t) // or there is none to start
	p, temporary := demo(t)
	p.Read(&p.Stdout, "the shop opens", func(said string) bool { return strings.Contains(said, "the shop opens") })
	p.Signal(os.Interrupt)
	if code := p.Await(); code != 1 || p.Stderr.String() != "demo: interrupted; everything is taken down\n" {
		t.Errorf("exit code %d, standard error %q", code, p.Stderr.String())
	}
	gone(t, temporary, true)
}

// Even killed it leaves no process.
func TestDemoKilled(t *testing.T) {
	t.Parallel()
	servertest.RabbitMQ(t)
	p, temporary := demo(t)
	p.Read(&p.Stdout, "the shop opens", func(said string) bool { return strings.Contains(said, "the shop opens") })
	p.Signal(syscall.SIGKILL)
	p.Await()
	gone(t, temporary, false)
}

func TestDemoRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-orders=0"}, 2, "-orders must be"},
		{[]string{"-order=1"}, 2, "see demo -help"},
		{[]string{"BRIDGE_DATABASE_URL=sqlite:/x.db"}, 1, "BRIDGE_DATABASE_URL: must start with postgres://"},
		{[]string{"BRIDGE_DATABASE_URL=postgres://u:" + password + "@127.0.0.1:1/x"}, 1, "BRIDGE_DATABASE_URL: "},
		{[]string{"BRIDGE_AMQP_URL=amqp://u:" + password + "@127.0.0.1:1/"}, 1, "BRIDGE_AMQP_URL: "},
	} {
		p, temporary := demo(t, c.args...)
		if code := p.Await(); code != c.code {
			t.Errorf("%v: exit code %d", c.args, code)
		}
		line := p.Stderr.String()
		if strings.Count(line, "\n") != 1 || !strings.Contains(line, c.want) || strings.Contains(line+p.Stdout.String(), password) {
			t.Errorf("%v: %q", c.args, line)
		}
		gone(t, temporary, true)
	}
}
