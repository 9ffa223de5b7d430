package bridgectl_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// A broker may answer heartbeats, and a request never: a queue without a majority, a frozen node
// behind a proxy. Each command must end all the same, and its error must name the request.
func TestACommandEndsIfTheBrokerAnswersHeartbeatsOnly(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	id := s.deadLetter(letter("t", ""))[0]
	declared, qosDone := []servertest.Method{{50, 11}}, []servertest.Method{{60, 11}}
	taken := []servertest.Method{{60, 71}, {60, 72}} // or empty: other calls have the message
	calls := map[*program.Process]string{}
	for _, call := range []struct {
		silence []servertest.Method
		args    []string
		names   string
	}{ // at the same time: each takes as long as a request may
		{declared, []string{"dead", "list"}, `look into queue "staging.dead"`},
		{taken, []string{"dead", "show", id}, `take a message from queue "staging.dead"`},
		{qosDone, []string{"dead", "discard", "--all", "--yes"}, `remove messages from queue "staging.dead"`},
		{qosDone, []string{"dead", "replay", id}, `remove messages from queue "staging.dead"`},
		{declared, []string{"orphans", "sweep"}, `look at queue "staging"`},
		{declared, []string{"topology", "declare"}, `queue "staging"`},
		{declared, []string{"message", id}, `look into queue "staging.dead"`},
		{declared, []string{"status"}, `ask for the queues`},
		{declared, []string{"doctor"}, `look at queue "staging"`},
	} {
		_, through := servertest.NewGate(t, s.AMQP, func(f servertest.Frame) bool { return f.Reply && slices.Contains(call.silence, f.Method) })
		calls[s.also("BRIDGE_AMQP_URL="+through+"?heartbeat=600").start(call.args...)] = call.names
	}
	for call, names := range calls {
		code, said := call.Await(), strings.Join(strings.Fields(call.Stdout.String()+call.Stderr.String()), " ")
		if code == 0 || !strings.Contains(said, names) || !strings.Contains(said, "no answer from the broker") {
			t.Errorf("%s: exit code %d, it says %s, without %s", call, code, said, names)
		}
	}
}

// An ALTER TABLE in an open transaction locks the whole table. Each command that needs the table
// must end with an error that names the session.
func TestACommandThatWaitsForALockedTableNamesTheSession(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.Postgres)
	must(t, migrate.Inbox(t.Context(), s.DB, migrate.PostgreSQL))
	gateway := func(args ...string) *program.Process {
		cmd := program.Command(t, "email-gateway", args...)
		cmd.Env = append(cmd.Env, "EMAIL_DATABASE_URL="+program.DatabaseURL(t, s.DatabaseURL))
		return program.StartCmd(t, cmd)
	}
	if code := gateway("migrate").Await(); code != 0 {
		t.Fatalf("email-gateway migrate ends with %d", code)
	}
	id := s.deadLetter(letter("t", ""))[0]
	tx, err := s.DB.BeginTx(t.Context(), nil)
	must(t, err)
	defer func() { _ = tx.Rollback() }()
	var session string
	must(t, tx.QueryRowContext(t.Context(), "SELECT pg_backend_pid()::text").Scan(&session))
	retry := retryBehindALock(t)
	_, err = tx.ExecContext(t.Context(), "LOCK TABLE bridge_ledger, bridge_inbox_pending, bridge_mark, bridge_kept IN ACCESS EXCLUSIVE MODE")
	must(t, err)
	expectLocked(t, s, []*program.Process{gateway("doubtful", "list")}, ", for more than 10s, by session "+session+", login ", [][]string{
		{"status"}, {"message", id}, {"doctor", "database"}, {"orphans", "list"}, {"orphans", "sweep"}, {"carried", "list"}, {"delayed", "list"},
		{"dead", "replay", id}, {"pending", "list"}, {"gaps", "list"}, {"marks", "list"}, {"identity", "new", "--yes"},
	})
	expectLocked(t, s, []*program.Process{retry}, "email_gateway, for more than 10s, by session ", nil)
}

// retryBehindALock starts a command of the gateway on a database of its own, where only the gateway's
// own table is locked.
func retryBehindALock(t *testing.T) *program.Process {
	t.Helper()
	s := stage.New(t, stage.Postgres)
	must(t, migrate.Inbox(t.Context(), s.DB, migrate.PostgreSQL))
	start := func(args ...string) *program.Process {
		cmd := program.Command(t, "email-gateway", args...)
		cmd.Env = append(cmd.Env, "EMAIL_DATABASE_URL="+program.DatabaseURL(t, s.DatabaseURL))
		return program.StartCmd(t, cmd)
	}
	if code := start("migrate").Await(); code != 0 {
		t.Fatalf("email-gateway migrate ends with %d", code)
	}
	tx, err := s.DB.BeginTx(t.Context(), nil)
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	_, err = tx.ExecContext(t.Context(), "LOCK TABLE email_gateway IN ACCESS EXCLUSIVE MODE")
	must(t, err)
	return start("doubtful", "retry", uuid.NewString())
}

// MySQL and MariaDB show the wait to each login, the session that has the lock to few.
func TestACommandThatWaitsForALockedTableOfMySQLSaysSo(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.MariaDB)
	conn, err := s.DB.Conn(t.Context())
	must(t, err)
	defer func() { _ = conn.Close() }()
	_, err = conn.ExecContext(t.Context(), "LOCK TABLES bridge_ledger WRITE")
	must(t, err)
	expectLocked(t, s, nil, "Waiting for table metadata lock", [][]string{{"status"}, {"message", uuid.NewString()}, {"carried", "list"}})
}

// expectLocked starts commands. They and the calls must fail, with a text that says why.
func expectLocked(t *testing.T, s *scene, calls []*program.Process, names string, commands [][]string) {
	t.Helper()
	for _, args := range commands {
		calls = append(calls, s.start(args...))
	}
	for _, call := range calls {
		code, said := call.Await(), strings.Join(strings.Fields(call.Stdout.String()+call.Stderr.String()), " ")
		if code == 0 || !strings.Contains(said, "table is locked: ") || !strings.Contains(said, names) {
			t.Errorf("%s: exit code %d, it says %s", call, code, said)
		}
	}
}
