package ledger_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

func TestPostgresOwnTableEndToEnd(t *testing.T) {
	t.Parallel()
	testEndToEnd(t, postgresOwnTable(postgresHarness("pgx", servertest.PostgresDB)))
}

// A committed message is forwarded and a rolled-back one dropped, whether the transaction ends
// before the verifier's lookup or during it.
func testEndToEnd(t *testing.T, h ledgertest.Harness) {
	s := stage.New(t, kindOf(h))
	s.Queue("orders", nil)
	send := func(body string) *sql.Tx {
		t.Helper()
		tx := begin(t, s.DB)
		message := stage.To("orders", body)
		message.ID = newID()
		if h.Insert != nil {
			must(t, h.Insert(t.Context(), bridge.SQL(tx), []uuid.UUID{message.ID}))
		}
		_, err := s.Sender.SendTx(t.Context(), bridge.SQL(tx), message)
		must(t, err)
		return tx
	}
	must(t, send("committed before").Commit())
	must(t, send("rolled back before").Rollback())
	commits, rollsBack := send("committed while it waits"), send("rolled back while it waits")
	v := s.Verify(verifier.Options{Allow: []verifier.Allow{{RoutingKey: "orders"}}})
	got := map[string]bool{string(s.Receive("orders", 1)[0].Body): true}
	must(t, commits.Commit())
	must(t, rollsBack.Rollback())
	got[string(s.Receive("orders", 1)[0].Body)] = true
	if !got["committed before"] || !got["committed while it waits"] {
		t.Errorf("%v were forwarded", got)
	}
	if h.Insert != nil { // only the staging time shows that a row is recent, with a margin
		if n := v.Stats().Dropped; n != 0 {
			t.Errorf("%d messages are dropped without evidence", n)
		}
		ahead := stage.To("orders", "staged a minute ahead")
		ahead.ID = newID()
		tx := begin(t, s.DB)
		must(t, h.Insert(t.Context(), bridge.SQL(tx), []uuid.UUID{ahead.ID}))
		must(t, tx.Commit())
		staged, err := wire.Encode(ahead, s.Ledger.Identity())
		must(t, err)
		staged.Headers[wire.HeaderStagedAt] = time.Now().Add(time.Minute).UnixMilli()
		must(t, s.Channel.PublishWithContext(t.Context(), "", s.Topology.Queue, true, false, staged))
		s.Receive("orders", 1)
	}
	s.Eventually("both rollbacks are dropped", func() bool { return v.Stats().Dropped == 2 })
	v.Stop()
	s.WaitEmpty("orders")
	s.WaitEmpty("staging")
	if rows := s.Rows(); rows != 0 {
		t.Errorf("%d rows are left in the ledger", rows)
	}
}

// kindOf returns the stage's kind of database for a harness.
func kindOf(h ledgertest.Harness) stage.Database {
	var connect func() (*sql.DB, error)
	return stage.Database{
		URL: func(t testing.TB) string {
			connect = h.Create(t)
			return ""
		},
		Open: func(ctx context.Context, _ string) (*sql.DB, driver.Ledger, error) {
			db, err := connect()
			if err != nil {
				return nil, nil, err
			}
			if err := h.Migrate(ctx, db); err != nil {
				return nil, nil, err
			}
			ledger, err := h.Open(ctx, db)
			return db, ledger, err
		},
	}
}
