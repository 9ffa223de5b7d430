package versions_test

import (
	"database/sql"
	sqldriver "database/sql/driver"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
	"github.com/twoqueue/twoqueue/idempotency/versions"
)

type noInbox struct{ driver.Inbox }

func TestMisuseIsRefusedByTheNameOfTheField(t *testing.T) {
	negative, handBack := int64(-1), versions.Options{HandBack: true}
	for _, c := range []struct {
		names    string
		consumer string
		versions versions.VersionFunc
		opts     versions.OrderedOptions
	}{
		{"consumer name is empty", "", receivertest.VersionOf, versions.OrderedOptions{Options: handBack}},
		{"versionOf is nil", "shop", nil, versions.OrderedOptions{Options: handBack}},
		{"HandBack", "shop", receivertest.VersionOf, versions.OrderedOptions{}},
		{"Options.Hold", "shop", receivertest.VersionOf, versions.OrderedOptions{Options: versions.Options{HandBack: true, Hold: -1}}},
		{"OrderedOptions.Start", "shop", receivertest.VersionOf, versions.OrderedOptions{Start: &negative}},
		{"OrderedOptions.MaxKept ", "shop", receivertest.VersionOf, versions.OrderedOptions{MaxKept: -1}},
		{"OrderedOptions.MaxKeptBytes", "shop", receivertest.VersionOf, versions.OrderedOptions{MaxKeptBytes: -1}},
		{"OrderedOptions.GapAge", "shop", receivertest.VersionOf, versions.OrderedOptions{GapAge: -1}},
	} {
		if _, err := versions.NewOrdered(noInbox{}, c.consumer, c.versions, &c.opts); err == nil || !strings.Contains(err.Error(), c.names) {
			t.Errorf("got %v, want an error that names %s", err, c.names)
		}
	}
	_, noKeys := versions.NewHighWater(noInbox{}, "shop", nil, &handBack)
	_, noVersions := versions.NewLatest(noInbox{}, "shop", nil, &handBack)
	_, noStore := versions.NewLatest(nil, "shop", receivertest.VersionOf, &handBack)
	_, noChoice := versions.NewHighWater(noInbox{}, "shop", receivertest.KeyOf, nil)
	for names, err := range map[string]error{"keyOf is nil": noKeys, "versionOf is nil": noVersions, "marks is nil": noStore, "HandBack": noChoice} {
		if err == nil || !strings.Contains(err.Error(), names) {
			t.Errorf("got %v, want an error that names %s", err, names)
		}
	}
}

func TestTheHandlersTransactionsHaveTheTxOptions(t *testing.T) {
	r := newReceiver(t)
	strategies := r.strategies("shop", versions.Options{TxOptions: &sql.TxOptions{Isolation: sql.LevelSerializable}})
	serializable := 0
	r.Faults.OnBegin = func(opts sqldriver.TxOptions) {
		if opts.Isolation == sqldriver.IsolationLevel(sql.LevelSerializable) {
			serializable++
		}
	}
	for name, strategy := range strategies {
		serializable = 0
		receivertest.Must(t, strategy.handle(t.Context(), r.DB, r.event("e:1"), placeEvent))
		if serializable != 1 {
			t.Errorf("%s: %d transactions are serializable, want 1", name, serializable)
		}
	}

	serializable = 0
	ordered, err := versions.NewOrdered(r.Inbox, "lists", receivertest.VersionOf, &versions.OrderedOptions{
		Options: versions.Options{HandBack: true, TxOptions: &sql.TxOptions{Isolation: sql.LevelSerializable}}})
	receivertest.Must(t, err)
	if _, err := ordered.Gaps(t.Context(), r.DB, 10); err != nil || serializable != 0 {
		t.Errorf("Gaps: %v; %d transactions are serializable, want none: reading all kept rows would make events fail", err, serializable)
	}
}
