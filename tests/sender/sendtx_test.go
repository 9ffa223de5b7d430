package sender_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/stage"
)

func TestOnlyATransactionCanSend(t *testing.T) {
	t.Parallel()
	transaction := reflect.TypeFor[bridge.SQLTx]()
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

// Rule 11 of package bridge: whether its messages are sent or not, the transaction goes on,
// the caller ends it, and nothing but queries and INSERTs has been added to it.
func TestTheTransactionStaysTheCallers(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, s *stage.Stage) {
		if _, err := s.DB.ExecContext(t.Context(), `CREATE TABLE work (id int)`); err != nil {
			t.Fatal(err)
		}
		send := func(msgs ...bridge.Message) (*watchedTx, error) {
			tx := &watchedTx{Tx: begin(t, s.DB)}
			_, err := s.Sender.SendTx(t.Context(), bridge.SQL(tx), msgs...)
			if tx.ended > 0 {
				t.Errorf("the transaction was ended by SendTx, whose error is %v", err)
			}
			for _, statement := range tx.statements {
				if verb, _, _ := strings.Cut(strings.TrimSpace(statement), " "); verb != "INSERT" && verb != "SELECT" {
					t.Errorf("a statement of ours in the caller's transaction: %s", statement)
				}
			}
			return tx, err
		}
		works := func(tx *watchedTx) {
			t.Helper()
			if _, err := tx.Tx.ExecContext(t.Context(), `INSERT INTO work VALUES (1)`); err != nil {
				t.Errorf("the transaction does not go on: %v", err)
			}
		}

		s.Queue("target", nil)
		tx, err := send(messages("target", 2)...)
		if err != nil {
			t.Fatal(err)
		}
		works(tx)
		if err := tx.Tx.Commit(); err != nil {
			t.Errorf("the caller's commit: %v", err)
		}
		if len(tx.statements) == 0 {
			t.Error("no statement was seen: nothing is shown")
		}

		if _, err := s.Channel.QueueDelete(s.Topology.Queue, false, false, false); err != nil {
			t.Fatal(err)
		}
		if tx, err = send(messages("target", 2)...); !errors.Is(err, bridge.ErrReturned) {
			t.Errorf("without a staging queue: %v", err)
		}
		works(tx)
		if err := tx.Tx.Rollback(); err != nil {
			t.Errorf("the caller's rollback: %v", err)
		}

		var done int
		if err := s.DB.QueryRowContext(t.Context(), `SELECT count(*) FROM work`).Scan(&done); err != nil || done != 1 {
			t.Errorf("%d rows of the caller's work, error %v; must be that of the commit alone", done, err)
		}
	})
}

// A watchedTx is a caller's transaction that notes what others do with it.
type watchedTx struct {
	*sql.Tx
	ended      int
	statements []string
}

func (tx *watchedTx) Commit() error   { tx.ended++; return tx.Tx.Commit() }
func (tx *watchedTx) Rollback() error { tx.ended++; return tx.Tx.Rollback() }

func (tx *watchedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tx.statements = append(tx.statements, query)
	return tx.Tx.ExecContext(ctx, query, args...)
}

func (tx *watchedTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	tx.statements = append(tx.statements, query)
	return tx.Tx.QueryContext(ctx, query, args...)
}

func TestTheCommitDecides(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, s *stage.Stage) {
		s.Queue("target", nil)
		own := stage.To("target", "own ID")
		own.ID = uuid.New()

		tx := begin(t, s.DB)
		ids, err := s.Sender.SendTx(t.Context(), bridge.SQL(tx), append(messages("target", 2), own)...)
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
		more, err := s.Sender.SendTx(t.Context(), bridge.SQL(xtx), messages("target", 2)...)
		if err != nil {
			t.Fatal(err)
		}
		commit(t, xtx)

		rolledBack := begin(t, s.DB)
		if _, err := s.Sender.SendTx(t.Context(), bridge.SQL(rolledBack), messages("target", 2)...); err != nil {
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
				if _, err := s.Sender.SendTx(t.Context(), bridge.SQL(savepoint), messages("target", 2)...); err != nil {
					t.Fatal(err)
				}
			}
		}
		kept, err := s.Sender.SendTx(t.Context(), bridge.SQL(savepoint), messages("target", 1)...)
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
		if _, err := sender.SendTx(t.Context(), bridge.SQL(tx), messages("target", 3)...); err != nil {
			t.Fatal(err)
		}
		if look(); !slices.Equal(depths, []int{0, 0, 3}) {
			t.Errorf("depths before and after Record and after SendTx: %v", depths)
		}
		commit(t, tx)

		failing = failure
		tx = begin(t, s.DB)
		if _, err := sender.SendTx(t.Context(), bridge.SQL(tx), messages("target", 3)...); !errors.Is(err, failure) {
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
			_, err := s.Sender.SendTx(t.Context(), bridge.SQL(tx), msgs...)
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
		_, err := s.Sender.SendTx(t.Context(), bridge.SQL(begin(t, other.DB)), messages("target", 1)...)
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
			_, err := strict.SendTx(t.Context(), bridge.SQL(tx), msgs...)
			if !errors.Is(err, bridge.ErrInvalidMessage) || bridge.Retryable(err) {
				t.Errorf("error %v", err)
			}
			contains(t, err, text)
		}
		// The transaction is as good as before.
		ids, err := s.Sender.SendTx(t.Context(), bridge.SQL(tx), messages(s.Queue("target", nil), 1)...)
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
			ids, err := s.Sender.SendTx(ctx, bridge.SQL(tx), messages("target", 1+rand.IntN(3))...)
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
