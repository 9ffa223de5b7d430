package cmd_test

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// The endpoints answer while database or broker are away, and name each one that is missing.
func TestReadyNamesTheMissingServers(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	databaseValve, database := servertest.Through(t, s.DatabaseURL)
	brokerValve, broker := servertest.Through(t, s.AMQP)
	databaseValve.HoldReplies()
	p := start(t, "verifier", "BRIDGE_DATABASE_URL="+database, "BRIDGE_AMQP_URL="+broker, "BRIDGE_QUEUE="+s.Topology.Queue, "BRIDGE_STATUS_ADDR=127.0.0.1:0")
	phase := func(words ...string) {
		t.Helper()
		_, text := program.Get(t, "http://"+p.Where("status page")+"/status.json")
		for _, word := range words {
			if !strings.Contains(text, word) {
				t.Errorf("the status page does not say %s: %s", word, text)
			}
		}
	}
	phase(`"state":"starting"`)
	p.AwaitEndpoint("/readyz", 503, "starting: database and broker have not both answered yet\n")
	if code, text := p.Endpoint("/livez"); code != 200 || text != "ok\n" {
		t.Errorf("livez: %d %s", code, text)
	}
	if code, _ := p.Endpoint("/metrics"); code != 200 {
		t.Errorf("metrics: %d", code)
	}
	databaseValve.Release()
	p.AwaitEndpoint("/readyz", 200, "ok\n")

	databaseValve.HoldReplies()
	p.AwaitEndpoint("/readyz", 503, "database: not reachable, or not usable as a ledger\n")
	health(t, p, 1, "database: not reachable")
	phase(`"state":"failing"`, `"error":"`)
	p.measure(map[string]string{"twoqueue_database_usable": "0", "twoqueue_session_running": "1"})
	databaseValve.Release()
	p.AwaitEndpoint("/readyz", 200, "ok\n")
	health(t, p, 0, "ok\n")
	p.measure(map[string]string{"twoqueue_database_usable": "1"})

	brokerValve.HoldReplies()
	brokerValve.Cut()
	p.AwaitEndpoint("/readyz", 503, "broker: no connection, or the broker refuses an operation\nsession: none; see the log\n")
	phase(`"state":"failing"`, `"error":"`, "broker unavailable")
	brokerValve.Release()
	p.AwaitEndpoint("/readyz", 200, "ok\n")

	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// health runs verifier -health beside a running verifier.
func health(t *testing.T, p *process, code int, words string) {
	t.Helper()
	asker := start(t, "verifier", "-health", "BRIDGE_HTTP_ADDR="+p.Where("endpoints"),
		"BRIDGE_DATABASE_URL=sqlite:/nowhere", "BRIDGE_AMQP_URL=amqp://127.0.0.1:1/")
	if got := asker.Await(); got != code || !strings.Contains(asker.Stdout.String()+asker.Stderr.String(), words) {
		t.Errorf("health: exit code %d: %s%s", got, asker.Stdout.String(), asker.Stderr.String())
	}
}

// A stopping verifier waits for the confirm of a published message, but not longer than
// BRIDGE_DRAIN.
func TestNotReadyWhileDraining(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env    []string
		signal os.Signal
		code   int
	}{
		"drained":             {[]string{"BRIDGE_DRAIN=10m"}, syscall.SIGTERM, 0},
		"not drained in time": {[]string{"BRIDGE_DRAIN=100ms", "BRIDGE_ALLOW=:emails"}, os.Interrupt, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, stage.Postgres)
			target := s.Queue("emails", nil)
			tx, _ := s.Begin(stage.To(target, ""))
			valve, broker := servertest.Through(t, s.AMQP)
			p := verify(t, s, append(c.env, "BRIDGE_PATIENCE=10m", "BRIDGE_AMQP_URL="+broker+"?heartbeat=600")...)
			p.AwaitEndpoint("/readyz", 200, "ok\n")
			s.Eventually("the verifier waits for the transaction", func() bool {
				var n int
				must(t, s.DB.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n))
				return n > 0
			})
			valve.HoldReplies()
			must(t, tx.Commit())
			s.WaitDepth(target, 1)
			p.Signal(c.signal)
			if c.code == 0 {
				p.AwaitEndpoint("/readyz", 503, "stopping: forwarding the judged messages\n")
				if code, _ := p.Endpoint("/livez"); code != 200 {
					t.Errorf("livez: %d", code)
				}
				valve.Release()
			}
			if code := p.Await(); code != c.code || strings.Contains(p.Stderr.String(), "not drained") != (code != 0) {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
