package cmd_test

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/tests/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// password is in every login that must fail, and must never be seen again.
const password = "s3cret"

// refused runs a verifier that cannot start, and holds it to one line that names
// the variable and the mend. It returns the line.
func refused(t *testing.T, code int, variable, mend string, env ...string) string {
	t.Helper()
	p := start(t, "verifier", append([]string{"BRIDGE_LOG_LEVEL=warn", "BRIDGE_ALLOW=*:*"}, env...)...)
	if got := p.Await(); got != code {
		t.Errorf("exit code %d, not %d", got, code)
	}
	line := p.Stderr.String()
	if strings.Count(line, "\n") != 1 || !strings.HasPrefix(line, "verifier: "+variable+": ") || !strings.Contains(line, mend) {
		t.Errorf("standard error is not one line with %s and %q:\n%s", variable, mend, line)
	}
	if out := p.Stdout.String(); out != "" {
		t.Errorf("standard output: %s", out)
	}
	for _, entry := range env {
		_, value, _ := strings.Cut(entry, "=")
		if all := p.Stderr.String() + p.Stdout.String(); strings.Contains(all, password) || strings.Contains(value, "://") && strings.Contains(all, value) {
			t.Errorf("the output gives a password or a URL away:\n%s", all)
		}
	}
	t.Log(strings.TrimSpace(line))
	return line
}

func TestWrongConfiguration(t *testing.T) {
	t.Parallel()
	good := []string{"BRIDGE_DATABASE_URL=postgres://u:" + password + "@127.0.0.1:1/db", "BRIDGE_AMQP_URL=amqp://u:" + password + "@127.0.0.1:1/"}
	refused(t, 2, "BRIDGE_PREFETSH", "did you mean BRIDGE_PREFETCH?", append(good, "BRIDGE_PREFETSH=5")...)
	refused(t, 2, "BRIDGE_DRAIN", "give a positive duration", append(good, "BRIDGE_DRAIN=soon")...)
	refused(t, 2, "BRIDGE_DATABASE_URL", "is not set", good[1])
	refused(t, 2, "BRIDGE_AMQP_URL", "is not set", good[0])
	refused(t, 2, "BRIDGE_DATABASE_URL", "must be postgres://user:password@host:port/database", "BRIDGE_DATABASE_URL=postgres://u:"+password+"#@h/d", good[1])
	refused(t, 2, "BRIDGE_DATABASE_URL", "must start with postgres://", "BRIDGE_DATABASE_URL=oracle://u:"+password+"@h/d", good[1])
}

func TestUnreachableServers(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	refused(t, 4, "BRIDGE_DATABASE_URL", "see that the database is there and runs",
		"BRIDGE_DATABASE_URL=postgres://u:"+password+"@127.0.0.1:1/db", "BRIDGE_AMQP_URL="+s.AMQP)
	refused(t, 4, "BRIDGE_DATABASE_URL", "see that the database is there and runs",
		"BRIDGE_DATABASE_URL=sqlite:"+filepath.Join(t.TempDir(), "missing.db"), "BRIDGE_AMQP_URL="+s.AMQP)
	refused(t, 5, "BRIDGE_AMQP_URL", "see that the broker runs",
		"BRIDGE_DATABASE_URL="+s.DatabaseURL, "BRIDGE_AMQP_URL=amqp://u:"+password+"@127.0.0.1:1/")
	refused(t, 2, "BRIDGE_AMQP_URL", "not of the form", "BRIDGE_DATABASE_URL="+s.DatabaseURL, "BRIDGE_AMQP_URL=http://u:"+password+"@127.0.0.1:1/")
}

func TestWrongCredentials(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	refused(t, 5, "BRIDGE_AMQP_URL", "correct user, password or virtual host",
		"BRIDGE_DATABASE_URL="+s.DatabaseURL, "BRIDGE_AMQP_URL="+strings.Replace(s.AMQP, "guest:guest", "guest:"+password, 1))
	refused(t, 5, "BRIDGE_AMQP_URL", "correct user, password or virtual host",
		"BRIDGE_DATABASE_URL="+s.DatabaseURL, "BRIDGE_AMQP_URL="+s.AMQP+"_missing")

	// A server of its own, since the shared one trusts everyone.
	rules := filepath.Join(openDir(t), "pg_hba.conf")
	if err := os.WriteFile(rules, []byte("host all all 127.0.0.1/32 scram-sha-256\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	strict := servertest.StartPostgres(t, &servers.PostgresOptions{Fast: true, Config: []string{"hba_file = '" + rules + "'"}})
	refused(t, 4, "BRIDGE_DATABASE_URL", "correct user or password",
		"BRIDGE_DATABASE_URL="+strings.Replace(strict.URL(), "postgres@", "postgres:"+password+"@", 1), "BRIDGE_AMQP_URL="+s.AMQP)
}

// openDir is a temporary folder that other accounts can read.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestNoRights(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	refused(t, 5, "BRIDGE_AMQP_URL", "see that the login may", "BRIDGE_QUEUE=other",
		"BRIDGE_DATABASE_URL="+s.DatabaseURL, "BRIDGE_AMQP_URL="+servertest.User(t, s.AMQP, "", "", ""))
}

func TestMissingTables(t *testing.T) {
	t.Parallel()
	amqpURL := servertest.Vhost(t)
	refused(t, 6, "BRIDGE_DATABASE_URL", "create the tables with verifier -migrate",
		"BRIDGE_DATABASE_URL="+servertest.PostgresDB(t), "BRIDGE_AMQP_URL="+amqpURL)
	file := filepath.Join(t.TempDir(), "empty.db")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, 6, "BRIDGE_DATABASE_URL", "create the tables with verifier -migrate",
		"BRIDGE_DATABASE_URL=sqlite:"+file, "BRIDGE_AMQP_URL="+amqpURL)
	if content, err := os.ReadFile(file); err != nil || len(content) != 0 {
		t.Errorf("the file was touched: %d bytes, %v", len(content), err)
	}
}

func TestStandby(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	staged := staging(t, s)
	primary := servertest.StartPostgres(t, nil)
	if p := start(t, "verifier", "-migrate", "BRIDGE_DATABASE_URL="+primary.URL()); p.Await() != 0 {
		t.Fatal("no tables")
	}
	standby := servertest.StartStandby(t, primary)
	refused(t, 7, "BRIDGE_DATABASE_URL", "name the primary", "BRIDGE_QUEUE="+s.Topology.Queue,
		"BRIDGE_DATABASE_URL="+standby.URL(), "BRIDGE_AMQP_URL="+s.AMQP)
	staged()
}

// staging stages messages, and returns a check that nobody has touched them.
func staging(t *testing.T, s *stage.Stage) func() {
	t.Helper()
	queue := s.Queue("target", nil)
	s.Commit(stage.To(queue, "committed"))
	s.RollBack(stage.To(queue, "rolled back"))
	return func() {
		t.Helper()
		s.WaitDepth(s.Topology.Queue, 2)
		if target, dead, rows := s.Depth(queue), s.Depth(s.Topology.DeadQueue()), s.Rows(); target != 0 || dead != 0 || rows != 1 {
			t.Errorf("%d at the target, %d dead, %d rows", target, dead, rows)
		}
	}
}

// A staging queue that would lose messages is refused, and nothing is declared
// beside it.
func TestQueuesThatLoseMessages(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres) // for its ledger and its channel
	staging := func(more amqp.Table) amqp.Table {
		args := amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1_000_000, "x-dead-letter-exchange": "",
			"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
		maps.Copy(args, more)
		return args
	}
	for name, c := range map[string]struct {
		args     amqp.Table
		property string
	}{
		"ttl":       {staging(amqp.Table{"x-message-ttl": 60000}), "exists with another x-message-ttl"},
		"limited":   {staging(amqp.Table{"x-max-length": 1000, "x-overflow": "drop-head"}), "delete the queue when it is empty"}, // the broker names one of them
		"impatient": {staging(amqp.Table{"x-delivery-limit": 20}), "exists with another x-delivery-limit"},
		"classic":   {amqp.Table{"x-queue-type": "classic", "x-dead-letter-exchange": ""}, "delete the queue when it is empty"},
	} {
		c.args["x-dead-letter-routing-key"] = name + ".dead"
		s.Queue(name, c.args)
		refused(t, 5, "BRIDGE_QUEUE", c.property, "BRIDGE_QUEUE="+name,
			"BRIDGE_DATABASE_URL="+s.DatabaseURL, "BRIDGE_AMQP_URL="+s.AMQP)
		for _, beside := range []string{name + ".waiting", name + ".dead"} {
			if exists(t, s, beside) {
				t.Errorf("%s was declared", beside)
			}
		}
	}
}

func exists(t *testing.T, s *stage.Stage, queue string) bool {
	t.Helper()
	conn, err := amqp.Dial(s.AMQP)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	_, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	return err == nil
}
