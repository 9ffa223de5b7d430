package metrics_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"
	_ "modernc.org/sqlite"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/metrics"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openInbox(t *testing.T) (*sql.DB, driver.Inbox) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "inbox.db"))
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	must(t, migrate.Inbox(t.Context(), db, migrate.SQLite))
	inbox, err := sqlite.OpenInbox(t.Context(), db)
	must(t, err)
	return db, inbox
}

// An error would fail the scrape for the whole program: promhttp.Handler answers 500.
func TestAnInboxThatDoesNotAnswerTakesNoOtherMetricFromTheScrape(t *testing.T) {
	db, inbox := openInbox(t)
	dedup, err := idempotency.New(inbox, "mailer", &idempotency.Options{HandBack: true})
	must(t, err)
	registry := prometheus.NewRegistry()
	must(t, registry.Register(metrics.New("mailer", dedup, inbox)))
	must(t, db.Close())
	families, err := registry.Gather()
	must(t, err)
	outcomes := 0
	for _, family := range families {
		if strings.Contains(family.GetName(), "pending") {
			t.Errorf("%s is reported although the inbox does not answer", family.GetName())
		}
		if family.GetName() == "twoqueue_receiver_deliveries_total" {
			outcomes = len(family.GetMetric())
		}
	}
	if outcomes != 9 { // the number of outcomes in idempotency.Stats
		t.Errorf("%d outcomes are reported", outcomes)
	}
}

// Each scrape of each process could otherwise load the receiver's database.
func TestAScrapeChangesNothingInTheInboxAndAsksItSeldom(t *testing.T) {
	db, inbox := openInbox(t)
	tx, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	_, err = inbox.AddPending(t.Context(), bridge.SQL(tx), "mailer", driver.Pending{Key: "m1", State: driver.Started, Run: "r", Attempts: 1}, 0) // overdue at once
	must(t, err)
	must(t, tx.Commit())
	effects, err := pending.New(inbox, "mailer", &pending.Options{HandBack: true})
	must(t, err)
	registry := prometheus.NewRegistry()
	must(t, registry.Register(metrics.New("mailer", effects, inbox)))
	for range 2 {
		families, err := registry.Gather()
		must(t, err)
		counts := make(map[string]float64)
		for _, family := range families {
			if family.GetName() == "twoqueue_receiver_pending" {
				for _, m := range family.GetMetric() {
					counts[m.GetLabel()[1].GetValue()] = m.GetGauge().GetValue()
				}
			}
		}
		if counts["started"] != 1 || counts["doubtful"] != 0 {
			t.Errorf("counts %v, must be one started message", counts)
		}
		_, err = db.ExecContext(t.Context(), `DELETE FROM bridge_inbox_pending`) // the next count is not yet due
		must(t, err)
	}
}

func TestEachDeliveryOfABatchCountsWithTheTimeOfTheBatch(t *testing.T) {
	dedup, err := idempotency.New(noInbox{}, "mailer", &idempotency.Options{HandBack: true})
	must(t, err)
	m := metrics.New("mailer", dedup, nil)
	registry := prometheus.NewRegistry()
	must(t, registry.Register(m))
	failure := errors.New("handed back")
	handle := m.BatchHandler(func(_ context.Context, ds []amqp.Delivery) error {
		if len(ds) == 1 {
			panic("handler")
		}
		return failure
	})
	if err := handle(t.Context(), make([]amqp.Delivery, 2)); !errors.Is(err, failure) {
		t.Errorf("the handler's error is %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = handle(t.Context(), make([]amqp.Delivery, 1))
	}()
	families, err := registry.Gather()
	must(t, err)
	for _, family := range families {
		if family.GetName() == "twoqueue_receiver_delivery_seconds" {
			if n := family.GetMetric()[0].GetHistogram().GetSampleCount(); n != 3 {
				t.Errorf("%d deliveries are counted, must be 3", n)
			}
			return
		}
	}
	t.Error("the histogram is missing")
}

type noInbox struct{ driver.Inbox }
