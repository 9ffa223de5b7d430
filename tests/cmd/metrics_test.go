package cmd_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// scrape reads the metrics as Prometheus does.
func (p *process) scrape() map[string]*dto.MetricFamily {
	p.t.Helper()
	code, text := p.Endpoint("/metrics")
	if code != 200 {
		p.t.Fatalf("metrics: %d %s", code, text)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	must(p.t, err)
	return families
}

// value returns one metric: by its name, or by name{value} if it has a label. The value of a
// histogram is its count.
func value(families map[string]*dto.MetricFamily, name string) (float64, bool) {
	name, label, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
	for _, m := range families[name].GetMetric() {
		if label != "" && (len(m.GetLabel()) != 1 || m.GetLabel()[0].GetValue() != label) {
			continue
		}
		return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount()), true
	}
	return 0, false
}

// measure waits until each metric has this value, or at least this value if it ends in +.
func (p *process) measure(want map[string]string) {
	p.t.Helper()
	var last string
	servertest.Eventually(p.t, fmt.Sprint("the metrics are ", want), func() bool {
		families := p.scrape()
		for name, text := range want {
			got, found := value(families, name)
			last = fmt.Sprintf("%s is %v (%t), wanted %s", name, got, found, text)
			least, err := strconv.ParseFloat(strings.TrimSuffix(text, "+"), 64)
			must(p.t, err)
			if !found || got < least || !strings.HasSuffix(text, "+") && got != least {
				return false
			}
		}
		return true
	}, func() string { return last })
}

// Every outcome happens in a real run and is counted.
func TestMetricsCountEveryOutcome(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	target := s.Queue("emails", nil)
	full := s.Queue("full", amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	must(t, s.Channel.ExchangeDeclare("forbidden", "topic", true, false, false, false, nil))
	valve, address := servertest.Through(t, servertest.User(t, s.AMQP, ".*", "^(?!forbidden)", ".*"))
	began := time.Now()
	p := verify(t, s, "BRIDGE_AMQP_URL="+address, "BRIDGE_SAMPLE_INTERVAL=50ms", "BRIDGE_UNROUTABLE=1ms", "BRIDGE_PATIENCE=300ms",
		"BRIDGE_ALLOW=:emails,:full,:missing,forbidden:*", "BRIDGE_SWEEP_AGE=never")
	p.measure(map[string]string{"twoqueue_session_running": "1", "twoqueue_sessions_total": "1", "twoqueue_messages_total{forwarded}": "0",
		"twoqueue_dead_letters_total{swept}": "0", "twoqueue_session_failures_total{proof}": "0", "twoqueue_last_forward_timestamp_seconds": "0",
		"twoqueue_targets_unavailable{stuck}": "0", "twoqueue_messages_waiting{too_large}": "0", "twoqueue_oldest_waiting_age_seconds": "0", "twoqueue_sample_timestamp_seconds": "1+"})

	for range 5 {
		s.Commit(stage.To(target, "forwarded"))
	}
	s.RollBack(stage.To(target, "dropped"), stage.To(target, "dropped"), stage.To(target, "dropped"))
	s.Commit(stage.To("missing", "unroutable"), stage.To("elsewhere", "not allowed"), bridge.Message{Exchange: "forbidden", RoutingKey: "refused"})
	foreign := wire.Staged{Message: stage.To(target, "foreign"), Ledger: uuid.New()}
	foreign.ID = uuid.New()
	for _, publishing := range []amqp.Publishing{{Body: []byte("malformed")}, foreign.Publishing()} {
		must(t, s.Channel.PublishWithContext(t.Context(), "", s.Topology.Queue, false, false, publishing))
	}
	p.measure(map[string]string{"twoqueue_messages_total{forwarded}": "5", "twoqueue_messages_total{dropped}": "3", "twoqueue_messages_total{dead_lettered}": "5",
		"twoqueue_dead_letters_total{unroutable}": "1", "twoqueue_dead_letters_total{not-allowed}": "1", "twoqueue_dead_letters_total{refused}": "1",
		"twoqueue_dead_letters_total{foreign}": "1", "twoqueue_dead_letters_total{malformed}": "1", "twoqueue_targets_unavailable{unroutable}": "1",
		"twoqueue_staged_to_forwarded_seconds": "5", "twoqueue_judged_to_forwarded_seconds": "5",
		"twoqueue_last_forward_timestamp_seconds": fmt.Sprintf("%d+", began.Unix())})

	open, _ := s.Begin(stage.To(target, "waits"))
	p.measure(map[string]string{"twoqueue_messages_total{set_aside}": "1", "twoqueue_messages_waiting{transaction}": "1", "twoqueue_messages_held": "1",
		"twoqueue_settles_in_flight": "1", "twoqueue_oldest_waiting_age_seconds": "0.3+"})
	must(t, open.Commit())
	p.measure(map[string]string{"twoqueue_messages_total{forwarded}": "6", "twoqueue_messages_waiting{transaction}": "0", "twoqueue_oldest_waiting_age_seconds": "0", "twoqueue_settles_in_flight": "0"})

	s.Commit(stage.To(full, "the one that it takes"))
	s.WaitDepth(full, 1)
	s.Commit(stage.To(full, "waits"), stage.To(full, "waits"))
	p.measure(map[string]string{"twoqueue_targets_unavailable{full}": "1", "twoqueue_messages_waiting{full}": "2"})
	s.Receive(full, 3)
	p.measure(map[string]string{"twoqueue_messages_total{forwarded}": "9", "twoqueue_targets_unavailable{full}": "0", "twoqueue_messages_held": "0"})

	// There is an orphan, and no sweep runs.
	if _, err := s.DB.ExecContext(t.Context(), `INSERT INTO bridge_ledger (id, recorded_at) VALUES ($1, now() - interval '8 days')`, uuid.New()); err != nil {
		t.Fatal(err)
	}
	p.measure(map[string]string{"twoqueue_orphan_rows": "1", "twoqueue_sample_failures_total": "0",
		"twoqueue_carried_due": "0", "twoqueue_carried_oldest_due_seconds": "0", "twoqueue_restaged_total": "0"})

	// The verifier has lost the broker: due rows stay.
	valve.HoldReplies()
	valve.Cut()
	p.measure(map[string]string{"twoqueue_session_running": "0", "twoqueue_session_failures_total{broker}": "1+"})
	s.CommitCarried(stage.To(target, "carried"), stage.To(target, "carried"), stage.To(target, "carried"))
	p.measure(map[string]string{"twoqueue_carried_due": "3", "twoqueue_carried_oldest_due_seconds": "0.1+", "twoqueue_unpublished_oldest_due_seconds": "0.1+"})
	valve.Release()
	p.measure(map[string]string{"twoqueue_session_running": "1", "twoqueue_sessions_total": "2+", "twoqueue_restaged_total": "3",
		"twoqueue_carried_due": "0", "twoqueue_carried_oldest_due_seconds": "0",
		"twoqueue_messages_total{forwarded}": "12+"})

	// Two delayed messages are not yet due.
	for i := range 2 {
		m := stage.To(target, "later")
		m.NotBefore = time.Unix(4_000_000_000+int64(i), 0)
		s.Commit(m)
	}
	p.measure(map[string]string{"twoqueue_delayed_messages": "2", "twoqueue_delayed_next_timestamp_seconds": "4e+09", "twoqueue_unpublished_oldest_due_seconds": "0"})

	// A row whose message cannot be decoded stays.
	if _, err := s.DB.ExecContext(t.Context(), `INSERT INTO bridge_ledger (id, recorded_at, message, stage_at) VALUES ($1, now(), 'unreadable', now())`, uuid.New()); err != nil {
		t.Fatal(err)
	}
	p.measure(map[string]string{"twoqueue_rows_unstageable": "1"})
	if _, err := s.DB.ExecContext(t.Context(), `DELETE FROM bridge_ledger WHERE message IS NOT NULL`); err != nil {
		t.Fatal(err)
	}

	// The broker cancels a consumer.
	before, _ := value(p.scrape(), "twoqueue_session_failures_total{broker}")
	if _, err := s.Channel.QueueDelete(s.Topology.WaitingQueue(), false, false, false); err != nil {
		t.Fatal(err)
	}
	p.measure(map[string]string{"twoqueue_session_failures_total{broker}": fmt.Sprintf("%v+", before+1), "twoqueue_session_running": "1",
		"twoqueue_session_failures_total{database}": "0"})
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	countsSweeps(t, s)
}

// countsSweeps has a second verifier sweep the orphan, and then find a message that may belong to
// the swept row.
func countsSweeps(t *testing.T, s *stage.Stage) {
	t.Helper()
	p := verify(t, s, "BRIDGE_SWEEP_AGE=1h")
	p.measure(map[string]string{"twoqueue_swept_total": "1"})
	old := wire.Staged{Message: stage.To("emails", "of the swept row"), Ledger: s.Ledger.Identity(), StagedAt: time.Now().Add(-9 * 24 * time.Hour)}
	old.ID = uuid.New()
	must(t, s.Channel.PublishWithContext(t.Context(), "", s.Topology.Queue, false, false, old.Publishing()))
	p.measure(map[string]string{"twoqueue_messages_waiting{evidence}": "1", "twoqueue_waiting_for_evidence_seconds": "0+"})
	s.Evidence()
	p.measure(map[string]string{"twoqueue_dead_letters_total{swept}": "1", "twoqueue_messages_total{dead_lettered}": "1",
		"twoqueue_messages_waiting{evidence}": "0", "twoqueue_waiting_for_evidence_seconds": "0"})
}

// row matches a line of the table in the verifier's README: name, labels if any, meaning, when to
// look.
var row = regexp.MustCompile("(?m)^\\| `(twoqueue_[a-z_]+)(?:\\{([a-z,]+)\\})?` \\| (.+) \\| (.+) \\|$")

// Every documented metric exists, and every metric is documented.
func TestTheReadmeListsTheMetrics(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../cmd/verifier/README.md")
	must(t, err)
	p := verify(t, stage.New(t, stage.SQLite))
	families := p.scrape()
	documented := map[string]bool{}
	for _, match := range row.FindAllStringSubmatch(string(readme), -1) {
		name, labels, meaning, alert := match[1], match[2], match[3], match[4]
		documented[name] = true
		family := families[name]
		if family == nil {
			t.Errorf("%s is documented, and not there", name)
			continue
		}
		if len(meaning) < 10 || alert == "" || family.GetHelp() == "" {
			t.Errorf("%s: nothing is said about it", name)
		}
		for _, m := range family.GetMetric() {
			var names []string
			for _, label := range m.GetLabel() {
				names = append(names, label.GetName())
				named := slices.Contains([]string{"queue", "vhost"}, label.GetName()) // the broker names them
				if !named && !strings.Contains(meaning, "`"+label.GetValue()+"`") {
					t.Errorf("%s: %s is not documented", name, label.GetValue())
				}
			}
			if got := strings.Join(names, ","); got != labels {
				t.Errorf("%s has labels %q, documented is %q", name, got, labels)
			}
		}
	}
	if len(documented) < 15 {
		t.Errorf("only %d are documented", len(documented))
	}
	for _, name := range slices.Sorted(maps.Keys(families)) {
		if prefix, _, _ := strings.Cut(name, "_"); prefix != "go" && prefix != "process" && !documented[name] {
			t.Errorf("%s is not documented", name)
		}
	}
	if families["go_build_info"] == nil || families["process_cpu_seconds_total"] == nil {
		t.Error("the collectors of Go and the process are missing")
	}
	_, text := p.Endpoint("/metrics")
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	must(t, err)
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
}
