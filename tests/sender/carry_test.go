package sender_test

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// carryDatabases are the databases on which the tests carry messages.
var carryDatabases = append(slices.Clip(stage.Databases), stage.MariaDB)

// carriedRows returns the number of rows that carry a message.
func carriedRows(t *testing.T, s *stage.Stage) (n int) {
	t.Helper()
	if err := s.DB.QueryRowContext(t.Context(), "SELECT count(*) FROM bridge_ledger WHERE message IS NOT NULL").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// arrive waits until no row is left, and expects exactly these messages at the target, each once.
func arrive(t *testing.T, s *stage.Stage, want ...uuid.UUID) {
	t.Helper()
	s.Eventually("the messages arrive", func() bool { return s.Rows() == 0 && s.Depth("target") >= len(want) })
	s.WaitEmpty("staging")
	s.WantOnce("target", want...)
}

// A carried message goes out if and only if its transaction commits, however it is sent, also
// together with a message that is too large to be carried. A rollback to a savepoint removes the
// row and the message that it carries.
func TestSenderCarriesMessagesOfCommittedTransactions(t *testing.T) {
	t.Parallel()
	for _, kind := range carryDatabases {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, kind)
			s.Queue("target", nil)
			sndr := s.NewSender(sender.Options{Carry: sender.CarrySmall})
			large := stage.To("target", string(make([]byte, 20_000)))
			rolledBack := errors.New("the customer has changed her mind")
			var want []uuid.UUID
			for name, send := range ways {
				ids, err := send(t.Context(), sndr, s.DB, func(bridge.Tx) error { return nil }, append(messages("target", 3), large)...)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				want = append(want, ids...)
				_, err = send(t.Context(), sndr, s.DB, func(bridge.Tx) error { return rolledBack }, append(messages("target", 3), large)...)
				if !errors.Is(err, rolledBack) {
					t.Fatalf("%s: %v", name, err)
				}
			}
			undone := func(tx bridge.Tx) error {
				if _, err := tx.Exec(t.Context(), "SAVEPOINT here"); err != nil {
					return err
				}
				if _, err := sndr.StageTx(t.Context(), tx, messages("target", 2)...); err != nil {
					return err
				}
				_, err := tx.Exec(t.Context(), "ROLLBACK TO SAVEPOINT here")
				return err
			}
			ids, err := ways["StageTx"](t.Context(), sndr, s.DB, undone, append(messages("target", 3), large)...)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, ids...)
			if n := len(want); carriedRows(t, s) != n*3/4 || s.Rows() != n {
				t.Errorf("%d rows carry messages, of %d; must be %d, of %d", carriedRows(t, s), s.Rows(), n*3/4, n)
			}
			if err := sndr.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.Verify(verifier.Options{})
			arrive(t, s, want...)
		})
	}
}

// Without a broker the commit succeeds at once. When the sender has noticed the outage, it marks
// the rows as unpublished, so that a verifier stages the messages without delay.
func TestSenderCarriesMessagesWithoutABroker(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	broker, err := bridge.NewBroker("amqp://shop:secret@127.0.0.1:1/", &bridge.BrokerOptions{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	sndr, err := sender.New(s.Ledger, broker, &sender.Options{
		Queue: s.Topology.Queue, Carry: sender.CarrySmall, Timeout: time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	sent := 0
	s.Eventually("the sender knows of the outage", func() bool {
		if _, err := ways["InTx with Send"](t.Context(), sndr, s.DB, func(bridge.Tx) error { return nil }, messages("target", 3)...); err != nil {
			t.Fatal(err)
		}
		sent += 3
		due, _, err := s.Ledger.Due(t.Context(), driver.DueRow{}, 500)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(due, driver.DueRow.Unpublished)
	})
	if n := carriedRows(t, s); n != sent {
		t.Errorf("%d of %d rows carry messages", n, sent)
	}
	broker.Close()
	if err := sndr.Flush(t.Context()); err != nil {
		t.Error(err)
	}
}
