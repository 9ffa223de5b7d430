package cmd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// password is in every login that must fail. No output may contain it.
const password = "s3cret"

// refused runs a verifier that cannot start, and checks that it writes one line, which names the
// variable and the fix. It returns the line.
func refused(t *testing.T, code int, variable, fix string, env ...string) string {
	t.Helper()
	p := start(t, "verifier", append([]string{"BRIDGE_LOG_LEVEL=warn"}, env...)...)
	if got := p.Await(); got != code {
		t.Errorf("exit code %d, not %d", got, code)
	}
	line := p.Stderr.String()
	if strings.Count(line, "\n") != 1 || !strings.HasPrefix(line, "verifier: "+variable+": ") || !strings.Contains(line, fix) {
		t.Errorf("standard error is not one line with %s and %q:\n%s", variable, fix, line)
	}
	if out := p.Stdout.String(); out != "" {
		t.Errorf("standard output: %s", out)
	}
	silent(t, p)
	for _, entry := range env {
		if _, value, _ := strings.Cut(entry, "="); strings.Contains(line, password) || strings.Contains(value, "://") && strings.Contains(line, value) {
			t.Errorf("the output gives a password or a URL away:\n%s", line)
		}
	}
	t.Log(strings.TrimSpace(line))
	return line
}

func TestARefusedLoginIsReportedWithoutThePassword(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	for name, c := range map[string]struct {
		code                            int
		variable, fix, database, broker string
	}{
		"broker refuses":        {5, "BRIDGE_AMQP_URL", "correct user, password or virtual host", s.DatabaseURL, login(t, s.AMQP)},
		"no such virtual host":  {5, "BRIDGE_AMQP_URL", "correct user, password or virtual host", s.DatabaseURL, s.AMQP + "_missing"},
		"broker does not speak": {5, "BRIDGE_AMQP_URL", "", s.DatabaseURL, login(t, "amqps://"+hostOf(t, s.AMQP)+"/")},
		"PostgreSQL is another": {4, "BRIDGE_DATABASE_URL", "", login(t, "postgres://"+hostOf(t, s.AMQP)+"/db?connect_timeout=2"), s.AMQP},
		"MariaDB refuses":       {4, "BRIDGE_DATABASE_URL", "password", login(t, "mysql://"+servertest.MariaDB(t).Addr()+"/db"), s.AMQP},
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, c.code, c.variable, c.fix, "BRIDGE_DATABASE_URL="+c.database, "BRIDGE_AMQP_URL="+c.broker)
		})
	}
}

// strictPostgres starts a server that requires a password of every login except postgres. The
// shared server requires none.
func strictPostgres(t *testing.T) *servers.Postgres {
	t.Helper()
	path := filepath.Join(openDir(t), "pg_hba.conf")
	must(t, os.WriteFile(path, []byte("host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"), 0o644))
	return servertest.StartPostgres(t, &servers.PostgresOptions{Config: []string{"hba_file = '" + path + "'"}})
}

// openDir returns a temporary folder that other accounts can read.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		must(t, os.Chmod(d, 0o755))
	}
	return dir
}

func exists(t *testing.T, s *stage.Stage, queue string) bool {
	t.Helper()
	conn, err := amqp.Dial(s.AMQP)
	must(t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	must(t, err)
	_, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	return err == nil
}
