package sender_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/stage"
)

func TestOnlyATransactionCanSend(t *testing.T) {
	t.Parallel()
	transaction := reflect.TypeFor[bridge.Tx]()
	for kind, want := range map[reflect.Type]bool{
		reflect.TypeFor[*sql.Tx]():    true,
		reflect.TypeFor[*sqlx.Tx]():   true,
		reflect.TypeFor[*sql.DB]():    false,
		reflect.TypeFor[*sql.Conn]():  false,
		reflect.TypeFor[*sqlx.DB]():   false,
		reflect.TypeFor[*sqlx.Conn](): false,
	} {
		if got := kind.Implements(transaction); got != want {
			t.Errorf("%v can send: %t", kind, got)
		}
	}
}

func TestTheCommitDecides(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, s *stage.Stage) {
		s.Queue("target", nil)
		own := stage.To("target", "own ID")
		own.ID = uuid.New()

		tx := begin(t, s.DB)
		ids, err := s.Sender.SendTx(t.Context(), tx, append(messages("target", 2), own)...)
		if err != nil {
			t.Fatal(err)
		}
		if ids[2] != own.ID || ids[0].Version() != 7 || ids[1].Version() != 7 || ids[0] == ids[1] {
			t.Errorf("IDs %v", ids)
		}
		if n := len(s.Staged()); n != 3 {
			t.Errorf("%d of 3 messages were staged when SendTx came back", n)
		}
		commit(t, tx)

		xtx := xbegin(t, s)
		more, err := s.Sender.SendTx(t.Context(), xtx, messages("target", 2)...)
		if err != nil {
			t.Fatal(err)
		}
		commit(t, xtx)

		rolledBack := begin(t, s.DB)
		if _, err := s.Sender.SendTx(t.Context(), rolledBack, messages("target", 2)...); err != nil {
			t.Fatal(err)
		}
		if err := rolledBack.Rollback(); err != nil {
			t.Fatal(err)
		}

		savepoint := begin(t, s.DB)
		for _, statement := range []string{"SAVEPOINT a", "ROLLBACK TO a"} {
			if _, err := savepoint.ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
			if statement == "SAVEPOINT a" {
				if _, err := s.Sender.SendTx(t.Context(), savepoint, messages("target", 2)...); err != nil {
					t.Fatal(err)
				}
			}
		}
		kept, err := s.Sender.SendTx(t.Context(), savepoint, messages("target", 1)...)
		if err != nil {
			t.Fatal(err)
		}
		commit(t, savepoint)
		settled(t, s, "target", slices.Concat(ids, more, kept)...)
	})
}

func TestNothingToSendTouchesNothing(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.SQLite)
	if ids, err := s.Sender.SendTx(t.Context(), nil); err != nil || len(ids) != 0 {
		t.Errorf("IDs %v, %v", ids, err)
	}
}

// Rule 1 of package bridge.
func TestRecordComesBeforePublish(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, s *stage.Stage) {
		depths := []int{}
		look := func() { depths = append(depths, len(s.Staged())) }
		failure := errors.New("the disk is full")
		var failing error
		r := &recorder{Recorder: s.Ledger, before: func() error { look(); return failing }, after: look}
		sender := newSender(t, r, s.Broker, stage.Patience)

		tx := begin(t, s.DB)
		if _, err := sender.SendTx(t.Context(), tx, messages("target", 3)...); err != nil {
			t.Fatal(err)
		}
		if look(); !slices.Equal(depths, []int{0, 0, 3}) {
			t.Errorf("depths before and after Record and after SendTx: %v", depths)
		}
		commit(t, tx)

		failing = failure
		tx = begin(t, s.DB)
		if _, err := sender.SendTx(t.Context(), tx, messages("target", 3)...); !errors.Is(err, failure) {
			t.Errorf("error %v", err)
		}
		if n := len(s.Staged()); n != 3 {
			t.Errorf("%d messages were sent without a record", n-3)
		}
	})
}

func TestAnIDThatIsRecordedAlreadyIsNotSent(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, s *stage.Stage) {
		m := stage.To("target", "body")
		m.ID = s.Commit(m)[0]
		twins := messages("target", 2)
		twins[0].ID = uuid.New()
		twins[1].ID = twins[0].ID
		for name, msgs := range map[string][]bridge.Message{"committed before": {m}, "twice in one call": twins} {
			tx := begin(t, s.DB)
			_, err := s.Sender.SendTx(t.Context(), tx, msgs...)
			if !errors.Is(err, bridge.ErrDuplicateID) || bridge.Retryable(err) {
				t.Errorf("%s: %v", name, err)
			}
			if err := tx.Rollback(); err != nil {
				t.Error(err)
			}
		}
		if n := s.Depth("staging"); n != 1 {
			t.Errorf("%d duplicates were sent", n-1)
		}
	})
}

func TestATransactionOfAnotherDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, s *stage.Stage) {
		other := stage.New(t, s.Kind)
		_, err := s.Sender.SendTx(t.Context(), begin(t, other.DB), messages("target", 1)...)
		if !errors.Is(err, bridge.ErrOtherLedger) {
			t.Errorf("error %v", err)
		}
		if n := s.Depth("staging"); n != 0 {
			t.Errorf("%d messages were sent", n)
		}
	})
}

func TestWhatCannotBeStagedFailsBeforeTheINSERT(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, s *stage.Stage) {
		r := &recorder{Recorder: s.Ledger, before: func() error { t.Error("recorded"); return nil }}
		strict := newSender(t, r, s.Broker, stage.Patience)
		large, noTarget := messages("target", 3), messages("target", 3)
		large[1].Publishing.Body = make([]byte, 16<<20+1)
		noTarget[1].RoutingKey = ""
		tx := begin(t, s.DB)
		for text, msgs := range map[string][]bridge.Message{
			"message 2 of 3: invalid message: body of 16777217 bytes: at most 16777216": large,
			"message 2 of 3: invalid message: no target":                                noTarget,
		} {
			_, err := strict.SendTx(t.Context(), tx, msgs...)
			if !errors.Is(err, bridge.ErrInvalidMessage) || bridge.Retryable(err) {
				t.Errorf("error %v", err)
			}
			contains(t, err, text)
		}
		// The transaction is as good as before.
		ids, err := s.Sender.SendTx(t.Context(), tx, messages(s.Queue("target", nil), 1)...)
		if err != nil {
			t.Fatal(err)
		}
		commit(t, tx)
		settled(t, s, "target", ids...)
	})
}

func TestTheLargestMessageIsDelivered(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	m := stage.To(s.Queue("target", nil), "")
	m.Publishing.Body = make([]byte, 16<<20)
	settled(t, s, "target", s.Commit(m)...)
}

func TestMessagesAreStagedInTheirOrder(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	ids := s.Commit(messages("target", 500)...)
	for i, d := range s.Staged() {
		if d.MessageId != ids[i].String() || string(d.Body) != fmt.Sprint(i) {
			t.Fatalf("at %d: message %s with body %q", i, d.MessageId, d.Body)
		}
	}
}

func TestTenThousandMessagesInOneTransaction(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, s *stage.Stage) {
		s.Queue("target", nil)
		s.RollBack(messages("target", 100)...)
		settled(t, s, "target", s.Commit(messages("target", 10_000)...)...)
	})
}

func TestHundredsOfGoroutinesShareASender(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, s *stage.Stage) {
		s.Queue("target", nil)
		s.DB.SetMaxOpenConns(20)
		ctx, cancel := context.WithTimeout(t.Context(), stage.Patience)
		defer cancel()
		var (
			running   sync.WaitGroup
			mu        sync.Mutex
			committed []uuid.UUID
		)
		work := func() error {
			tx, err := s.DB.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			ids, err := s.Sender.SendTx(ctx, tx, messages("target", 1+rand.IntN(3))...)
			if err != nil || rand.IntN(3) == 0 {
				return err
			}
			if err := tx.Commit(); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			committed = append(committed, ids...)
			return nil
		}
		for range 300 {
			running.Go(func() {
				if err := work(); err != nil {
					t.Error(err)
				}
			})
		}
		running.Wait()
		s.DB.SetMaxOpenConns(0) // as many as the verifier may need
		settled(t, s, "target", committed...)
	})
}
