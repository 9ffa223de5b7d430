package sender_test

import (
	"database/sql"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// parking makes a sender whose broker is not there.
func parking(t *testing.T, s *stage.Stage) *sender.Sender {
	t.Helper()
	broker, err := bridge.NewBroker("amqp://shop:secret@127.0.0.1:1/", &bridge.BrokerOptions{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	out, err := sender.New(s.Ledger, broker, &sender.Options{
		Queue: s.Topology.Queue, Parking: sender.ParkOnOutage, ParkAfter: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func execute(t *testing.T, tx *sql.Tx, statement string) {
	t.Helper()
	if _, err := tx.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// unparked runs a verifier, and expects exactly these messages at the target.
func unparked(t *testing.T, s *stage.Stage, want ...uuid.UUID) {
	t.Helper()
	v := s.Verify(verifier.Options{})
	missing := make(map[string]bool, len(want))
	for _, id := range want {
		missing[id.String()] = true
	}
	s.Eventually("the messages arrive and nothing is parked", func() bool {
		var parked int
		if err := s.DB.QueryRowContext(t.Context(), "SELECT count(*) FROM bridge_parked").Scan(&parked); err != nil {
			t.Fatal(err)
		}
		return parked == 0 && s.Depth("target") >= len(want) && s.Rows() == 0
	})
	v.Stop()
	for _, d := range s.Receive("target", len(want)) {
		if !missing[d.MessageId] {
			t.Errorf("message %s was delivered and was not to be, or twice", d.MessageId)
		}
		delete(missing, d.MessageId)
	}
	if n := s.Depth("target"); n != 0 {
		t.Errorf("%d messages too many at the target", n)
	}
}

// A rollback to a savepoint that was set after StageTx keeps the row in the ledger, so it must
// keep the parked message too: if every call has returned nil, the message arrives.
func TestARollbackAfterStageTxUndoesNoParking(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	shop(t, s)
	sndr := parking(t, s)
	var committed []uuid.UUID
	for attempt := range 3 {
		tx := begin(t, s.DB)
		staged, err := sndr.StageTx(t.Context(), bridge.SQL(tx), stage.To("target", "m"))
		if err == nil {
			execute(t, tx, "SAVEPOINT here")
			err = staged.Wait(t.Context())
			execute(t, tx, "ROLLBACK TO here")
		}
		if err == nil {
			err = tx.Commit()
			committed = append(committed, staged.IDs()...)
		} else {
			_ = tx.Rollback()
		}
		if attempt == 0 && err != nil && !bridge.Retryable(err) || attempt > 0 && err != nil {
			t.Errorf("attempt %d during the outage: %v", attempt, err)
		}
	}
	var lost int
	err := s.DB.QueryRowContext(t.Context(), "SELECT count(*) FROM bridge_ledger WHERE id NOT IN (SELECT id FROM bridge_parked)").Scan(&lost)
	if err != nil || lost > 0 {
		t.Fatalf("%d committed messages are neither staged nor parked, %v", lost, err)
	}
	unparked(t, s, committed...)
}

// The parked message goes with its row.
func TestARollbackBeforeStageTxUndoesItsParking(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	shop(t, s)
	sndr := parking(t, s)
	kept := func() (kept []uuid.UUID) {
		tx := begin(t, s.DB)
		kept, err := sndr.SendTx(t.Context(), bridge.SQL(tx), stage.To("target", "kept")) // finds the outage
		if err != nil {
			t.Fatal(err)
		}
		execute(t, tx, "SAVEPOINT here")
		staged, err := sndr.StageTx(t.Context(), bridge.SQL(tx), stage.To("target", "undone"))
		if err != nil {
			t.Fatal(err)
		}
		execute(t, tx, "ROLLBACK TO here")
		if err := staged.Wait(t.Context()); err != nil {
			t.Errorf("wait after the rollback: %v", err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		return kept
	}()
	unparked(t, s, kept...)
}

// InTx may park at its end what Stage could not publish: no rollback to a savepoint follows. A
// message whose row such a rollback has undone is not delivered, parked or not.
func TestInTxParksWhatWasStagedBeforeASavepoint(t *testing.T) {
	t.Parallel()
	onDoors(t, func(t *testing.T, s *stage.Stage, d door) {
		s.Sender = parking(t, s)
		var ids []uuid.UUID
		err := d.inTx(t.Context(), func(tx transaction) (err error) {
			if ids, err = tx.outbox.Stage(t.Context(), stage.To("target", "m")); err != nil {
				return err
			}
			_, err = tx.Exec(t.Context(), "SAVEPOINT here")
			_, undone := tx.outbox.Stage(t.Context(), stage.To("target", "undone"))
			_, back := tx.Exec(t.Context(), "ROLLBACK TO here")
			return errors.Join(err, undone, back)
		})
		if err != nil {
			t.Fatal(err)
		}
		unparked(t, s, ids...)
	})
}
