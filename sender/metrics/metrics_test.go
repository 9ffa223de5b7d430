package metrics_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/sender/metrics"
	"github.com/twoqueue/twoqueue/sender/sendertest"
)

func TestTheStatsAreMetrics(t *testing.T) {
	s := sendertest.New(t, &sender.Options{Carry: sender.CarryNever})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(metrics.New(s.Sender))
	send := func(messages ...bridge.Message) error {
		return s.InTx(t.Context(), s.DB, nil, func(tx *sender.Tx) error {
			_, err := tx.Send(messages...)
			return err
		})
	}
	email := bridge.Message{RoutingKey: "emails"}
	if err := send(email, email); err != nil {
		t.Fatal(err)
	}
	s.FailPublish(sendertest.ErrOut)
	if err := send(email); err == nil {
		t.Fatal("no error")
	}
	s.FailPublish(sendertest.ErrRefused)
	if err := send(email); err == nil {
		t.Fatal("no error")
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, family := range families {
		m := family.GetMetric()[0]
		got[family.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	for name, want := range map[string]float64{
		"recorded_total": 4, "carried_total": 0, "staged_total": 4, "confirmed_total": 2, "refused_total": 1, "failed_total": 1,
		"group_messages": 3, "confirm_seconds": 1, "waiting_bytes": 0, "outage": 1, "failing": 1,
	} {
		if value, ok := got["twoqueue_sender_"+name]; !ok || value != want {
			t.Errorf("%s is %v, must be %v", name, value, want)
		}
	}
	if got["twoqueue_sender_failing_timestamp_seconds"] < 1e9 || len(got) != 12 {
		t.Errorf("the metrics are %v", got)
	}
}
