// Package sender_test holds a sender against the rules of package bridge, on real
// servers.
package sender_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

func TestMain(m *testing.M) { servertest.Main(m) }

func onAll(t *testing.T, test func(t *testing.T, s *stage.Stage)) {
	for _, kind := range stage.Databases {
		t.Run(kind.Name, func(t *testing.T) { test(t, stage.New(t, kind)) })
	}
}

// begin begins a transaction that is rolled back at the end of the test at last.
func begin(t *testing.T, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// xbegin is begin for users of sqlx.
func xbegin(t *testing.T, s *stage.Stage) *sqlx.Tx {
	t.Helper()
	driver := map[string]string{"postgres": "pgx", "sqlite": "sqlite"}[s.Kind.Name]
	tx, err := sqlx.NewDb(s.DB, driver).BeginTxx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func commit(t *testing.T, tx interface{ Commit() error }) {
	t.Helper()
	if err := tx.Commit(); err != nil {
		t.Fatalf("commit: %v", err)
	}
}

// messages makes n messages for a queue with bodies 0, 1, 2, …
func messages(queue string, n int) []bridge.Message {
	out := make([]bridge.Message, n)
	for i := range out {
		out[i] = stage.To(queue, fmt.Sprint(i))
	}
	return out
}

// newSender makes a sender beside the stage's.
func newSender(t *testing.T, ledger driver.Recorder, broker *bridge.Broker, timeout time.Duration) *sender.Sender {
	t.Helper()
	s, err := sender.New(ledger, broker, &sender.Options{Queue: "staging", Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A recorder records in a ledger, with something before and after.
type recorder struct {
	driver.Recorder
	before func() error
	after  func()
}

func (r *recorder) Record(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) error {
	if r.before != nil {
		if err := r.before(); err != nil {
			return err
		}
	}
	err := r.Recorder.Record(ctx, tx, ids)
	if r.after != nil {
		r.after()
	}
	return err
}

// settled runs a verifier until it has settled the staging queue, and expects
// exactly these messages at the target queue, and no row in the ledger.
func settled(t *testing.T, s *stage.Stage, queue string, want ...uuid.UUID) {
	t.Helper()
	staged := len(s.Staged())
	v := s.Verify(verifier.Options{})
	s.Eventually("all are judged", func() bool {
		stats := v.Stats()
		return stats.Dropped+stats.Forwarded >= int64(staged) && s.Depth(s.Topology.Queue) == 0 && v.State().Held == 0
	})
	v.Stop()
	s.WaitEmpty(s.Topology.Queue)
	missing := make(map[string]bool, len(want))
	for _, id := range want {
		missing[id.String()] = true
	}
	for _, d := range s.Receive(queue, len(want)) {
		if !missing[d.MessageId] {
			t.Errorf("message %s was delivered, and was not to be, or not twice", d.MessageId)
		}
		delete(missing, d.MessageId)
	}
	if n := s.Depth(queue); n != 0 {
		t.Errorf("%d messages too many at the target", n)
	}
	if n := s.Rows(); n != 0 {
		t.Errorf("%d rows are left in the ledger", n)
	}
}

func contains(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v does not contain %q", err, text)
	}
}
