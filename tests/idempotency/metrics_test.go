package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/metrics"
	"github.com/twoqueue/twoqueue/idempotency/pending"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// gathered returns the values of a registry, by name and labels. A histogram's value is its
// count.
func gathered(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	must(t, err)
	values := make(map[string]float64)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				name += fmt.Sprintf(" %s=%s", label.GetName(), label.GetValue())
			}
			values[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return values
}

// A scrape reports the outcomes of deliveries, the running handlers, and the age of doubtful
// messages. If two processes share an inbox, the idle one reports the inbox's messages too.
func TestTheMetricsOfAReceiver(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "PostgreSQL")
	q := newQueue(t, quorum)
	effects, err := pending.New(db.inbox, "orders", &pending.Options{HandBack: true})
	must(t, err)
	began, goOn := make(chan struct{}), make(chan struct{})
	m := metrics.New("orders", effects, db.inbox)
	r := q.run(q.url, m.Handler(func(ctx context.Context, d amqp.Delivery) error {
		return effects.AtMostOnce(ctx, db.DB, d, func(context.Context, amqp.Delivery) error {
			switch d.MessageId {
			case "doubtful":
				return errors.New("no answer")
			case "slow":
				close(began)
				<-goOn
			}
			return nil
		})
	}), idempotency.ConsumerOptions{Workers: 1})
	m.Watch(r.Consumer)
	registry := prometheus.NewRegistry()
	must(t, registry.Register(m))
	q.publish("done", "done", "doubtful", "slow")
	servertest.Next(t, "the last message is handled", began)

	// Another process has the same inbox.
	idle, err := pending.New(db.inbox, "orders", &pending.Options{HandBack: true})
	must(t, err)
	others := prometheus.NewRegistry()
	must(t, others.Register(metrics.New("orders", idle, db.inbox)))
	is := func(registry *prometheus.Registry, want map[string]float64) {
		t.Helper()
		values := gathered(t, registry)
		for name, n := range want {
			if value, ok := values["twoqueue_receiver_"+name]; !ok || value != n {
				t.Errorf("%s is %v (there: %v), not %v", name, value, ok, n)
			}
		}
		if oldest := values["twoqueue_receiver_oldest_pending_seconds consumer=orders state=doubtful"]; oldest < 0 || oldest > time.Hour.Seconds() {
			t.Errorf("the oldest is %v seconds old", oldest)
		}
	}
	waiting := map[string]float64{
		"pending consumer=orders state=doubtful": 1, "pending consumer=orders state=started": 1, "pending consumer=orders state=ready": 0,
		"pending consumer=orders state=failed": 0, "oldest_pending_seconds consumer=orders state=failed": 0,
	}
	is(registry, waiting)
	is(others, waiting)
	is(others, map[string]float64{"deliveries_total consumer=orders outcome=handled": 0})
	is(registry, map[string]float64{
		"deliveries_total consumer=orders outcome=handled": 1, "deliveries_total consumer=orders outcome=duplicate": 1,
		"deliveries_total consumer=orders outcome=doubtful": 1, "deliveries_total consumer=orders outcome=handed_back": 0,
		"delivery_seconds consumer=orders": 3, "consuming consumer=orders": 1, "running consumer=orders": 1,
	})
	values := gathered(t, registry)
	if since := values["twoqueue_receiver_changed_timestamp_seconds consumer=orders"]; time.Since(time.Unix(int64(since), 0)).Abs() > time.Hour {
		t.Errorf("consuming since %v", since)
	}
	if oldest := values["twoqueue_receiver_oldest_running_seconds consumer=orders"]; oldest <= 0 {
		t.Errorf("the oldest handler has run for %v seconds", oldest)
	}
	close(goOn)
	settled(t, effects, 2)
	r.drained()
	is(registry, map[string]float64{"delivery_seconds consumer=orders": 4, "consuming consumer=orders": 0, "running consumer=orders": 0,
		"oldest_running_seconds consumer=orders": 0})
}
