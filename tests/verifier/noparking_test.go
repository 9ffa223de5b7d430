package verifier_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// Version 4 of the ledger's tables moves parked messages to their rows. Their records equal
// records of plain messages, and may be older than the watermark of a sweep.
func TestAMessageThatWasParkedArrives(t *testing.T) {
	t.Parallel()
	for _, database := range []stage.Database{stage.Postgres, stage.MariaDB} {
		t.Run(database.Name, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, database)
			target := s.Queue("target", nil)
			want := map[string]bool{}
			var entries []driver.Entry
			for _, m := range append(some(target, 3), stage.To(target, strings.Repeat("large", 50_000))) {
				m.ID = uuid.Must(uuid.NewV7())
				parked := wire.Staged{Message: m, Ledger: s.Ledger.Identity(), StagedAt: time.Now().Add(-3 * time.Hour)}
				entries = append(entries, driver.Entry{ID: m.ID, Message: wire.EncodeRecord(parked.Publishing()), Unpublished: true})
				add(want, m.ID)
			}
			tx, err := s.DB.BeginTx(t.Context(), nil)
			if err == nil {
				err = s.Ledger.Record(t.Context(), bridge.SQL(tx), entries)
			}
			if err == nil {
				_, err = tx.ExecContext(t.Context(), "UPDATE bridge_watermark SET swept_before = CURRENT_TIMESTAMP")
			}
			if err == nil {
				err = tx.Commit()
			}
			if err != nil {
				t.Fatal(err)
			}
			first, second := s.Verify(verifier.Options{}), s.Verify(verifier.Options{})
			expectOnce(t, s, target, want)
			first.Stop()
			second.Stop()
			if n := first.Stats().Restaged + second.Stats().Restaged; n != int64(len(want)) {
				t.Errorf("%d were staged again, must be %d", n, len(want))
			}
		})
	}
}
