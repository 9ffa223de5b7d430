package ops

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier"
)

// metrics are the metrics of a monitor. Each has a row in cmd/verifier/README.md.
type metrics struct {
	of  *Monitor
	own []prometheus.Collector // all collectors of this package

	deadLetters *prometheus.CounterVec
	failures    *prometheus.CounterVec
	lastForward prometheus.Gauge
	staged      prometheus.Histogram
	judged      prometheus.Histogram

	due          prometheus.Gauge
	oldestDue    prometheus.Gauge
	orphans      prometheus.Gauge
	sampled      prometheus.Gauge
	sampleFailed prometheus.Counter
	orphansIn    int // the number of samples until orphans are counted again
}

func newMetrics(of *Monitor) *metrics {
	buckets := prometheus.ExponentialBucketsRange(0.001, 3600, 20)
	m := &metrics{
		of: of,
		deadLetters: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "twoqueue_dead_letters_total",
			Help: "Messages moved to the dead queue, by reason."}, []string{"reason"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "twoqueue_session_failures_total",
			Help: "Sessions that ended, or could not start, by cause."}, []string{"cause"}),
		lastForward: prometheus.NewGauge(prometheus.GaugeOpts{Name: "twoqueue_last_forward_timestamp_seconds",
			Help: "Time of the last confirm of a message at a target, in seconds since 1970; 0: none yet."}),
		staged: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "twoqueue_staged_to_forwarded_seconds",
			Help:    "Time from a message's staging, by the sender's clock, to the confirm at its target. It includes the rest of the sender's transaction, because the time of a COMMIT is unknown.",
			Buckets: buckets}),
		judged: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "twoqueue_judged_to_forwarded_seconds",
			Help:    "Time from the lookup that found a message's transaction committed to the confirm at its target.",
			Buckets: buckets}),
		due: prometheus.NewGauge(prometheus.GaugeOpts{Name: "twoqueue_carried_due",
			Help: "Rows of the ledger that carry a message whose stage time has come, at the last query; 500 means 500 or more. In a backlog most of these messages are in the queues; after an outage of the broker most are only in their rows."}),
		oldestDue: prometheus.NewGauge(prometheus.GaugeOpts{Name: "twoqueue_carried_oldest_due_seconds",
			Help: "Time since the earliest stage time of these rows, by the database's clock, at the last query; 0 if none is due."}),
		orphans: prometheus.NewGauge(prometheus.GaugeOpts{Name: "twoqueue_orphan_rows",
			Help: "Rows of the ledger that are old enough for the sweep, at the last query; 1000 means 1000 or more."}),
		sampled: prometheus.NewGauge(prometheus.GaugeOpts{Name: "twoqueue_sample_timestamp_seconds",
			Help: "Time of the last successful query for due carried messages, in seconds since 1970; 0: none yet."}),
		sampleFailed: prometheus.NewCounter(prometheus.CounterOpts{Name: "twoqueue_sample_failures_total",
			Help: "Failed queries for due carried messages or for orphan rows."}),
	}
	for _, reason := range wire.DeadReasons() { // the label values exist from the start
		m.deadLetters.WithLabelValues(reason)
	}
	for _, cause := range causes {
		m.failures.WithLabelValues(string(cause))
	}
	m.own = []prometheus.Collector{queueInfo(of.opts.VHost, of.topology), m.deadLetters, m.failures, m.lastForward, m.staged, m.judged,
		m.due, m.oldestDue, m.orphans, m.sampled, m.sampleFailed, stateCollector{of}}
	return m
}

// queueInfo has the names of the queues, so that alerts can query the broker's metrics for them.
func queueInfo(vhost string, t bridge.Topology) prometheus.Collector {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "twoqueue_queue_info",
		Help: "1 for each of the verifier's own queues, by virtual host and name as the broker has them, and role."}, []string{"vhost", "queue", "role"})
	roles := map[string]string{t.Queue: "staging", t.WaitingQueue(): "waiting", t.DeadQueue(): "dead"}
	for _, queue := range t.OrderedQueues() {
		roles[queue] = "ordered"
	}
	if t.Audit > 0 {
		roles[t.AuditQueue()] = "audit"
	}
	for queue, role := range roles {
		info.WithLabelValues(readable(vhost), readable(queue), role).Set(1)
	}
	return info
}

// readable returns a name for metrics. A name in the broker may be invalid UTF-8, on which the
// library panics.
func readable(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }

func (m *metrics) done(e verifier.Event) {
	switch e.Verdict {
	case verifier.DeadLettered:
		m.deadLetters.WithLabelValues(e.Reason).Inc()
	case verifier.Forwarded:
		m.lastForward.Set(float64(e.Safe.UnixMilli()) / 1000)
		m.judged.Observe(seconds(e.Judged, e.Safe))
		if at := e.Message.StagedAt; !at.IsZero() {
			m.staged.Observe(seconds(at, e.Safe))
		}
	}
}

func (m *metrics) sessionEnded(err error) { m.failures.WithLabelValues(string(CauseOf(err))).Inc() }

func (m *metrics) describe(descs chan<- *prometheus.Desc) {
	for _, c := range m.own {
		c.Describe(descs)
	}
}

func (m *metrics) collect(values chan<- prometheus.Metric) {
	for _, c := range m.own {
		c.Collect(values)
	}
}

// seconds returns at least 0, because the clocks of two machines differ.
func seconds(from, to time.Time) float64 { return max(0, to.Sub(from).Seconds()) }

// stateCollector collects the verifier's state at each scrape.
type stateCollector struct{ of *Monitor }

var (
	messagesDesc  = desc("twoqueue_messages_total", "Messages finished by the verifier, by verdict. set_aside is no verdict: the message waited for long and was moved to the waiting queue, where verifiers consume it again.", "verdict")
	restagedDesc  = desc("twoqueue_restaged_total", "Carried messages staged from their rows: their first copies were lost, or there were none.")
	sweptDesc     = desc("twoqueue_swept_total", "Orphan rows removed from the ledger.")
	undeletedDesc = desc("twoqueue_rows_undeleted", "Ledger rows of delivered messages that could not be deleted yet: locked, or the database refuses.")
	abandonedDesc = desc("twoqueue_rows_abandoned_total", "Ledger rows of delivered messages that could not be deleted, and are no longer retried. The sweep removes plain ones; carried messages are delivered again.")
	unstageDesc   = desc("twoqueue_rows_unstageable", "Ledger rows that carry a message which the verifier could not stage: the broker refuses it, or its record cannot be read; 10000 means 10000 or more.")
	delayedDesc   = desc("twoqueue_delayed_messages", "Delayed messages (Message.NotBefore) whose time had not come at the last query; 10000 means 10000 or more.")
	nextDesc      = desc("twoqueue_delayed_next_timestamp_seconds", "Time of the next delayed message, by the database's clock, in seconds since 1970; 0 if none waits.")
	overdueDesc   = desc("twoqueue_unpublished_oldest_due_seconds", "Time since the earliest stage time of a due row without a published copy, at the last query: a delayed message, or a message recorded while the broker was out; 0 if there is none.")
	sessionsDesc  = desc("twoqueue_sessions_total", "Sessions started, each after a passed proof.")
	runningDesc   = desc("twoqueue_session_running", "1 if there is a session, else 0. A session notices a lost database only when it has messages to judge.")
	usableDesc    = desc("twoqueue_database_usable", "1 if the ledger's database was usable at the last check, else 0.")
	blockedDesc   = desc("twoqueue_broker_blocked", "1 while nothing can be published, else 0. Either the broker refuses a connection, or it has a memory or disk alarm. The broker reports an alarm to a worker when the worker publishes.")
	heldDesc      = desc("twoqueue_messages_held", "Messages held: taken from a queue, and not yet forwarded, dropped, dead-lettered or set aside.")
	waitingDesc   = desc("twoqueue_messages_waiting", "Messages held that wait, by reason: transaction (an open one), evidence (they look rolled back, and nothing shows yet that the senders commit on this database server), full, unroutable or stuck (their targets are unavailable), too_large (the broker's max_message_size was lowered).", "reason")
	oldestDesc    = desc("twoqueue_oldest_waiting_age_seconds", "Time since the staging of the held message that has waited longest for an open transaction; 0 if none waits.")
	settlingDesc  = desc("twoqueue_settles_in_flight", "Lookups that wait in the database for the end of a transaction.")
	targetsDesc   = desc("twoqueue_targets_unavailable", "Unavailable targets, by reason: full (nack), unroutable (missing), stuck (no confirms).", "reason")
	keysDesc      = desc("twoqueue_keys_waiting", "Order keys whose messages wait for an earlier one.")
	evidenceDesc  = desc("twoqueue_waiting_for_evidence_seconds", "Time for which messages have waited for evidence; 0 if none waits for it.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// targetReasons have values from the start.
var targetReasons = []verifier.TargetReason{verifier.Full, verifier.Missing, verifier.Stuck}

func (stateCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{messagesDesc, restagedDesc, sweptDesc, undeletedDesc, abandonedDesc, unstageDesc, delayedDesc, nextDesc, overdueDesc, sessionsDesc, runningDesc, usableDesc, blockedDesc, heldDesc,
		waitingDesc, oldestDesc, evidenceDesc, settlingDesc, targetsDesc, keysDesc} {
		descs <- d
	}
}

// oneIf returns 1 if the condition holds, else 0.
func oneIf(condition bool) float64 {
	if condition {
		return 1
	}
	return 0
}

func (c stateCollector) Collect(values chan<- prometheus.Metric) {
	state, stats := c.of.state(), c.of.stats()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		values <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	}
	for verdict, n := range map[verifier.Verdict]int64{
		verifier.Forwarded: stats.Forwarded, verifier.Dropped: stats.Dropped,
		verifier.DeadLettered: stats.DeadLettered, verifier.SetAside: stats.SetAside,
	} {
		send(messagesDesc, prometheus.CounterValue, float64(n), string(verdict))
	}
	send(restagedDesc, prometheus.CounterValue, float64(stats.Restaged))
	send(sweptDesc, prometheus.CounterValue, float64(stats.Swept))
	send(undeletedDesc, prometheus.GaugeValue, float64(state.Undeleted))
	send(abandonedDesc, prometheus.CounterValue, float64(stats.Abandoned))
	send(unstageDesc, prometheus.GaugeValue, float64(state.Unstageable))
	if late := c.of.delayed.Load(); late != nil { // no values before the database has answered
		next := 0.0
		if !late.next.IsZero() {
			next = float64(late.next.UnixMilli()) / 1000
		}
		send(delayedDesc, prometheus.GaugeValue, float64(late.waiting))
		send(nextDesc, prometheus.GaugeValue, next)
		send(overdueDesc, prometheus.GaugeValue, late.overdue.Seconds())
	}
	send(sessionsDesc, prometheus.CounterValue, float64(stats.Sessions))
	send(runningDesc, prometheus.GaugeValue, oneIf(!state.Session.IsZero()))
	asked, unusable := c.of.lastCheck()
	send(usableDesc, prometheus.GaugeValue, oneIf(asked && unusable == nil))
	send(blockedDesc, prometheus.GaugeValue, oneIf(state.Blocked != ""))
	send(heldDesc, prometheus.GaugeValue, float64(state.Held))
	oldest := 0.0
	if len(state.Oldest) > 0 {
		oldest = seconds(state.Oldest[0].Since, time.Now())
	}
	send(oldestDesc, prometheus.GaugeValue, oldest)
	withoutEvidence := 0.0
	if since := state.Waiting.EvidenceSince; !since.IsZero() {
		withoutEvidence = seconds(since, time.Now())
	}
	send(evidenceDesc, prometheus.GaugeValue, withoutEvidence)
	send(settlingDesc, prometheus.GaugeValue, float64(state.Settling))
	send(keysDesc, prometheus.GaugeValue, float64(state.KeysWaiting))
	targets := map[verifier.TargetReason]int{}
	waiting := map[string]int{"transaction": state.Waiting.Transaction, "evidence": state.Waiting.Evidence, "too_large": state.Waiting.TooLarge}
	for _, reason := range targetReasons {
		targets[reason], waiting[string(reason)] = 0, 0
	}
	for _, t := range state.Targets {
		targets[t.Reason]++
		waiting[string(t.Reason)] += t.Messages
	}
	for reason, n := range targets {
		send(targetsDesc, prometheus.GaugeValue, float64(n), string(reason))
	}
	for reason, n := range waiting {
		send(waitingDesc, prometheus.GaugeValue, float64(n), reason)
	}
}
