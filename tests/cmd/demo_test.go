package cmd_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // driver

	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// demo starts the demo with a folder of its own for temporary files. The e-mail gateway is beside
// the demo unless alone is set; then the demo must build it.
func demo(t *testing.T, alone bool, args ...string) (p *process, temporary string) {
	t.Helper()
	temporary = t.TempDir()
	cmd := program.Command(t, "demo", append([]string{"TMPDIR=" + temporary}, args...)...)
	if alone {
		path := filepath.Join(t.TempDir(), "demo")
		must(t, os.Link(cmd.Path, path))
		cmd.Path = path
	} else {
		program.Path(t, "email-gateway")
	}
	return &process{program.StartCmd(t, cmd), t}, temporary
}

// gone checks that the demo leaves no process and, if filesToo is set, no file.
func gone(t *testing.T, temporary string, filesToo bool) {
	t.Helper()
	if files, err := os.ReadDir(temporary); filesToo && (err != nil || len(files) > 0) {
		t.Errorf("left behind: %v, %v", files, err)
	}
	servertest.Eventually(t, "no process of the demo is left", func() bool { return processes(temporary) == 0 })
}

// processes returns the number of processes of the demo with these temporary files, itself
// included.
func processes(temporary string) (n int) {
	environments, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range environments {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), temporary) {
			n++
		}
	}
	return n
}

func TestDemo(t *testing.T) {
	for _, kind := range stage.Databases {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, kind) // to check the servers afterwards
			args := []string{"-orders=600", "BRIDGE_AMQP_URL=" + s.AMQP}
			if kind.Name == stage.Postgres.Name {
				args = append(args, "BRIDGE_DATABASE_URL="+s.DatabaseURL)
			}
			p, temporary := demo(t, false, args...)
			if code := p.Await(); code != 0 || p.Stderr.String() != "" {
				t.Errorf("exit code %d, standard error %q", code, p.Stderr.String())
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
				long := len([]rune(line)) > 81 && !strings.Contains(line, " level=") // a process's log line, unchanged
				if long || strings.ContainsAny(line, "\r\x1b") {
					t.Errorf("not a plain line of 80 characters: %q", line)
				}
			}
			gone(t, temporary, true)
			name := regexp.MustCompile(`queues (\S+?)\.\.\.`).FindStringSubmatch(out)
			if name == nil {
				t.Fatalf("it does not name its queues:\n%s", out)
			}
			for _, suffix := range []string{"", ".waiting", ".dead", ".emails", ".emails.dead"} {
				if exists(t, s, name[1]+suffix) {
					t.Errorf("the queue %s%s is left", name[1], suffix)
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
	if err := db.QueryRow(`SELECT count(*) FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%' AND nspname NOT IN ('public', 'information_schema')`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d schemas are left, %v", n, err)
	}
}

// Ctrl-C stops every process and removes every file. Even a killed demo leaves no process, its
// private RabbitMQ included. The killed demo has no broker and no gateway given: it starts and
// builds them itself.
func TestADemoThatIsStoppedLeavesNothing(t *testing.T) {
	t.Parallel()
	shared := servertest.Vhost(t)
	for _, c := range []struct {
		signal os.Signal
		broker []string
		code   int
		says   string
	}{
		{os.Interrupt, []string{"BRIDGE_AMQP_URL=" + shared}, 1, "demo: interrupted; everything is taken down\n"},
		{syscall.SIGKILL, nil, -1, ""},
	} {
		t.Run(c.signal.String(), func(t *testing.T) {
			t.Parallel()
			p, temporary := demo(t, c.broker == nil, c.broker...)
			p.Read(&p.Stdout, "the shop opens", func(said string) bool { return strings.Contains(said, "the shop opens") })
			servertest.Eventually(t, "the director, two gateways, a verifier and the shop run", func() bool {
				p.Running()
				return processes(temporary) >= 5
			})
			p.Signal(c.signal)
			if code := p.Await(); code != c.code || p.Stderr.String() != c.says {
				t.Errorf("exit code %d, standard error %q", code, p.Stderr.String())
			}
			gone(t, temporary, c.signal == os.Interrupt)
		})
	}
}
