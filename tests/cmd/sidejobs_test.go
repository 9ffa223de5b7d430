package cmd_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// Rule 12 of package bridge: messages flow, in one session, while the address of every endpoint
// is in use by another program, the trace collector does not answer, and the login has no rights
// except for judging.
func TestMessagesDependOnNothingBesideThem(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	target := s.Queue("target", nil)
	if _, err := s.DB.ExecContext(t.Context(), "REVOKE EXECUTE ON FUNCTION bridge_due FROM PUBLIC"); err != nil {
		t.Fatal(err)
	}
	_, database := servertest.PostgresRole(t, s.DatabaseURL, "SELECT, INSERT, DELETE ON bridge_ledger",
		"SELECT ON bridge_identity, bridge_ledger_version, bridge_watermark")

	taken := func() net.Listener {
		t.Helper()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		t.Cleanup(func() { _ = listener.Close() })
		return listener
	}
	http, status, pprof := taken(), taken(), taken()
	p := verify(t, s, "BRIDGE_DATABASE_URL="+database, "BRIDGE_SAMPLE_INTERVAL=50ms",
		"BRIDGE_HTTP_ADDR="+http.Addr().String(), "BRIDGE_STATUS_ADDR="+status.Addr().String(), "BRIDGE_PPROF_ADDR="+pprof.Addr().String(),
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://"+taken().Addr().String(), "OTEL_EXPORTER_OTLP_TIMEOUT=1000",
		"OTEL_BSP_EXPORT_TIMEOUT=1000", "OTEL_BSP_SCHEDULE_DELAY=100", "OTEL_BSP_MAX_QUEUE_SIZE=10", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=10")
	through := func() {
		t.Helper()
		const messages = 50
		for i := range messages {
			s.Commit(stage.To(target, fmt.Sprint(i)))
			s.RollBack(stage.To(target, "rolled back"))
		}
		s.Receive(target, messages)
		s.Eventually("the ledger is empty", func() bool { return s.Rows() == 0 })
	}
	through()
	jobs := []string{"job=endpoints", `job="status page"`, "job=profiles", "job=traces", "job=count", "job=stage"}
	for _, job := range jobs {
		p.Hear(job)
	}
	through()
	for _, listener := range []net.Listener{http, status, pprof} {
		must(t, listener.Close())
		p.Hear("address=" + listener.Addr().String())
	}
	p.AwaitEndpoint("/readyz", 200, "ok\n")
	through()
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	log := p.Stderr.String()
	for _, job := range append(jobs, "session started") {
		said := job
		switch {
		case job == "job=stage":
			said = `side job fails; carried messages without a copy in a queue wait until the job works" ` + job
		case strings.HasPrefix(job, "job="):
			said = `side job fails; no message waits for it" ` + job
		}
		if n := strings.Count(log, said); n != 1 {
			t.Errorf("the log says %d times %s:\n%s", n, said, log)
		}
	}
}
