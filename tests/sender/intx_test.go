package sender_test

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// shop has a table of the caller's, to see what became of the transaction.
func shop(t *testing.T, s *stage.Stage) {
	t.Helper()
	s.Queue("target", nil)
	if _, err := s.DB.ExecContext(t.Context(), "CREATE TABLE orders (id INTEGER PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
}

func order(ctx context.Context, tx *sender.Tx, id int) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES ($1)", id)
	return err
}

func orders(t *testing.T, s *stage.Stage) (n int) {
	t.Helper()
	if err := s.DB.QueryRowContext(t.Context(), "SELECT count(*) FROM orders").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestInTxCommitsTheWorkAndTheMessages(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, s *stage.Stage) {
		shop(t, s)
		var ids []uuid.UUID
		err := s.Sender.InTx(t.Context(), s.DB, nil, func(tx *sender.Tx) error {
			own := stage.To("target", "own ID")
			own.ID = uuid.New()
			for _, msgs := range [][]bridge.Message{messages("target", 2), nil, {own}} {
				more, err := tx.Send(msgs...)
				if err != nil {
					return err
				}
				ids = append(ids, more...)
			}
			if ids[2] != own.ID || ids[0] == ids[1] {
				t.Errorf("IDs %v", ids)
			}
			if n := s.Depth("staging"); n != 0 {
				t.Errorf("%d messages were staged before fn had ended", n)
			}
			return order(t.Context(), tx, 1)
		})
		if err != nil {
			t.Fatal(err)
		}
		if n := orders(t, s); n != 1 {
			t.Errorf("%d orders", n)
		}
		settled(t, s, "target", ids...)
	})
}

func TestInTxRollsBack(t *testing.T) {
	t.Parallel()
	wrong := errors.New("out of stock")
	tooLarge := stage.To("target", "")
	tooLarge.Publishing.Body = make([]byte, 16<<20+1)
	onAll(t, func(t *testing.T, s *stage.Stage) {
		shop(t, s)
		inTx := func(fn func(tx *sender.Tx) error) (err error) {
			defer func() {
				if r := recover(); r != nil {
					err = r.(error)
				}
			}()
			return s.Sender.InTx(t.Context(), s.DB, nil, fn)
		}
		for name, test := range map[string]struct {
			fn   func(tx *sender.Tx) error
			want error
		}{
			"when fn fails":  {func(*sender.Tx) error { return wrong }, wrong},
			"when fn panics": {func(*sender.Tx) error { panic(wrong) }, wrong},
			"when a message cannot be staged": {func(tx *sender.Tx) error {
				_, err := tx.Send(tooLarge)
				return err
			}, bridge.ErrInvalidMessage},
		} {
			t.Run(name, func(t *testing.T) {
				err := inTx(func(tx *sender.Tx) error {
					if _, err := tx.Send(messages("target", 2)...); err != nil {
						return err
					}
					if err := order(t.Context(), tx, 1); err != nil {
						return err
					}
					return test.fn(tx)
				})
				if !errors.Is(err, test.want) || errors.Is(err, sender.ErrCommitUnknown) {
					t.Errorf("error %v", err)
				}
			})
		}
		t.Run("when the staging fails", func(t *testing.T) {
			if _, err := s.Channel.QueueDelete("staging", false, false, false); err != nil {
				t.Fatal(err)
			}
			err := s.Sender.InTx(t.Context(), s.DB, nil, func(tx *sender.Tx) error {
				if err := order(t.Context(), tx, 1); err != nil {
					return err
				}
				_, err := tx.Send(messages("target", 2)...)
				return err
			})
			contains(t, err, `there is no queue "staging"; verifiers declare it`)
			if !errors.Is(err, bridge.ErrReturned) || errors.Is(err, sender.ErrCommitUnknown) {
				t.Errorf("error %v", err)
			}
			if err := s.Topology.Declare(t.Context(), s.Broker); err != nil {
				t.Fatal(err)
			}
		})
		if n := orders(t, s); n != 0 {
			t.Errorf("%d orders", n)
		}
		if n := s.Rows(); n != 0 {
			t.Errorf("%d rows in the ledger", n)
		}
		if open := s.DB.Stats().InUse; open != 0 {
			t.Errorf("%d connections are still in use", open)
		}
		settled(t, s, "target")
	})
}

func TestInTxDoesNotCommitAfterTheContextHasEnded(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, s *stage.Stage) {
		shop(t, s)
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("the customer is gone")
		r := &recorder{Recorder: s.Ledger}
		sndr := newSender(t, r, s.Broker, stage.Patience)
		err := sndr.InTx(ctx, s.DB, nil, func(tx *sender.Tx) error {
			if err := order(t.Context(), tx, 1); err != nil {
				return err
			}
			cancel(gone)
			return nil // and nothing to send
		})
		if !errors.Is(err, gone) || errors.Is(err, sender.ErrCommitUnknown) {
			t.Errorf("error %v", err)
		}
		if n := orders(t, s); n != 0 {
			t.Errorf("%d orders", n)
		}
	})
}

// A Commit in fn would commit without the messages; so fn cannot reach it, nor the
// *sql.Tx which has it. The transaction is still one for code that wants bridge.Tx.
func TestFnCannotEndTheTransaction(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"Commit", "Rollback"} {
		if _, ok := reflect.TypeFor[*sender.Tx]().MethodByName(method); ok {
			t.Errorf("a sender.Tx has the method %s", method)
		}
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[sender.Tx]()) {
		if field.IsExported() {
			t.Errorf("a sender.Tx has the field %s", field.Name)
		}
	}
	if !reflect.TypeFor[*sender.Tx]().Implements(reflect.TypeFor[bridge.Tx]()) {
		t.Error("a sender.Tx is no bridge.Tx")
	}
}

// What fn left behind, in a variable or in a goroutine, cannot send any more, and is
// told so.
func TestSendAfterFnHasReturnedIsAnError(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, s *stage.Stage) {
		shop(t, s)
		wrong := errors.New("out of stock")
		for _, end := range []error{nil, wrong} {
			var kept *sender.Tx
			if err := s.Sender.InTx(t.Context(), s.DB, nil, func(tx *sender.Tx) error {
				kept = tx
				return end
			}); !errors.Is(err, end) {
				t.Fatal(err)
			}
			ids, err := kept.Send(messages("target", 1)...)
			if !errors.Is(err, sql.ErrTxDone) || len(ids) != 0 {
				t.Errorf("a message sent after fn has returned %v: IDs %v, error %v", end, ids, err)
			}
		}
	})
}

// Nor can it send statements: these would run in the transaction after its messages were
// recorded, or between the answer of fn and the COMMIT.
func TestAStatementAfterFnHasReturnedIsAnError(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	shop(t, s)
	const query = "SELECT 1"
	prepared, err := s.DB.PrepareContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer prepared.Close()
	try := func(tx *sender.Tx) map[string]error {
		_, exec := tx.ExecContext(t.Context(), query)
		rows, queried := tx.QueryContext(t.Context(), query)
		if queried == nil {
			queried = errors.Join(rows.Err(), rows.Close())
		}
		var n int
		row := tx.QueryRowContext(t.Context(), query).Scan(&n)
		statement, prepare := tx.PrepareContext(t.Context(), query)
		if prepare == nil {
			prepare = statement.Close()
		}
		_, of := tx.StmtContext(t.Context(), prepared).ExecContext(t.Context())
		return map[string]error{"ExecContext": exec, "QueryContext": queried, "QueryRowContext": row, "PrepareContext": prepare, "StmtContext": of}
	}
	var kept *sender.Tx
	var beforeCommit map[string]error
	ledger := &between{Ledger: s.Ledger, record: func() { beforeCommit = try(kept) }}
	via, err := sender.New(ledger, s.Broker, &sender.Options{Queue: s.Topology.Queue, Timeout: stage.Patience})
	if err != nil {
		t.Fatal(err)
	}
	var inside map[string]error
	if err := via.InTx(t.Context(), s.DB, nil, func(tx *sender.Tx) error {
		kept, inside = tx, try(tx)
		_, err := tx.Send(messages("target", 1)...)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for when, results := range map[string]map[string]error{"before COMMIT": beforeCommit, "after COMMIT": try(kept)} {
		for method, err := range results {
			if inside[method] != nil {
				t.Errorf("%s in fn: %v", method, inside[method])
			}
			if !errors.Is(err, sql.ErrTxDone) || !strings.Contains(err.Error(), "InTx") {
				t.Errorf("%s after fn has returned, %s: %v, must be %v and name InTx", method, when, err, sql.ErrTxDone)
			}
		}
	}
}

// between does something before it records.
type between struct {
	driver.Ledger
	record func()
}

func (b *between) Record(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) error {
	b.record()
	return b.Ledger.Record(ctx, tx, ids)
}

// Of messages that goroutines send while fn returns, those with an ID are delivered and
// the others are errors.
func TestSendBesideFnIsDeliveredOrAnError(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	shop(t, s)
	const goroutines, each = 4, 500
	var sent [goroutines][]uuid.UUID
	var senders sync.WaitGroup
	began := make(chan struct{}, goroutines*each)
	err := s.Sender.InTx(t.Context(), s.DB, nil, func(tx *sender.Tx) error {
		for i := range goroutines {
			senders.Go(func() {
				for range each {
					ids, err := tx.Send(messages("target", 1)...)
					if began <- struct{}{}; err != nil {
						return
					}
					sent[i] = append(sent[i], ids...)
				}
			})
		}
		<-began
		return nil
	})
	senders.Wait()
	if err != nil {
		t.Fatal(err)
	}
	settled(t, s, "target", slices.Concat(sent[:]...)...)
}

// The COMMIT's answer does not come: once it was executed, once it did not even
// arrive. The sender cannot know; the verifier does.
func TestALostAnswerToTheCOMMITIsUnknown(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		hold      func(*servertest.Valve)
		committed bool
	}{
		"executed":     {(*servertest.Valve).HoldReplies, true},
		"not executed": {(*servertest.Valve).HoldRequests, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := stage.New(t, stage.Postgres)
			shop(t, s)
			address, err := url.Parse(s.DatabaseURL)
			if err != nil {
				t.Fatal(err)
			}
			valve := servertest.NewValve(t, address.Host)
			address.Host = valve.Addr()
			db, err := sql.Open("pgx", address.String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })

			// Between Record and COMMIT the database is not asked.
			held := make(chan struct{})
			r := &recorder{Recorder: s.Ledger, after: func() { test.hold(valve); close(held) }}
			sndr := newSender(t, r, s.Broker, stage.Patience)
			ended := make(chan error)
			var ids []uuid.UUID
			go func() {
				ended <- sndr.InTx(t.Context(), db, nil, func(tx *sender.Tx) error {
					if err := order(t.Context(), tx, 1); err != nil {
						return err
					}
					var err error
					ids, err = tx.Send(messages("target", 1)...)
					return err
				})
			}()
			<-held
			if test.committed {
				s.Eventually("committed", func() bool { return orders(t, s) == 1 })
			} else {
				s.WaitDepth("staging", 1) // the COMMIT follows
				select {
				case err := <-ended:
					t.Fatalf("ended: %v", err)
				case <-time.After(time.Second):
				}
			}
			valve.Cut()
			if err := <-ended; !errors.Is(err, sender.ErrCommitUnknown) {
				t.Errorf("error %v", err)
			}
			if !test.committed {
				settled(t, s, "target")
			} else {
				settled(t, s, "target", ids...)
			}
		})
	}
}

// The database has answered the COMMIT with a rollback: nothing is unknown.
func TestARefusedCOMMITIsARollback(t *testing.T) {
	t.Parallel()
	t.Run("deferred constraint", func(t *testing.T) {
		s := stage.New(t, stage.Postgres)
		shop(t, s)
		if _, err := s.DB.ExecContext(t.Context(), "CREATE TABLE items (o INTEGER REFERENCES orders DEFERRABLE INITIALLY DEFERRED)"); err != nil {
			t.Fatal(err)
		}
		refusedAtCommit(t, s, nil, func(tx *sender.Tx) error {
			_, err := tx.ExecContext(t.Context(), "INSERT INTO items VALUES (7)")
			return err
		})
	})
	t.Run("serialization failure", func(t *testing.T) {
		s := stage.New(t, stage.Postgres)
		shop(t, s)
		serializable := &sql.TxOptions{Isolation: sql.LevelSerializable}
		count := func(tx interface {
			QueryRowContext(context.Context, string, ...any) *sql.Row
		}) error {
			var n int
			return tx.QueryRowContext(t.Context(), "SELECT count(*) FROM orders").Scan(&n)
		}
		// Each of the two reads what the other writes; whoever commits last fails.
		other, err := s.DB.BeginTx(t.Context(), serializable)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = other.Rollback() }()
		if err := count(other); err != nil {
			t.Fatal(err)
		}
		sndr := newSender(t, &recorder{Recorder: s.Ledger, after: func() {
			if _, err := other.ExecContext(t.Context(), "INSERT INTO orders VALUES (2)"); err != nil {
				t.Error(err)
			}
			if err := other.Commit(); err != nil {
				t.Error(err)
			}
		}}, s.Broker, stage.Patience)
		s.Sender = sndr
		refusedAtCommit(t, s, serializable, func(tx *sender.Tx) error {
			if err := count(tx); err != nil {
				return err
			}
			return order(t.Context(), tx, 1)
		})
	})
}

func refusedAtCommit(t *testing.T, s *stage.Stage, opts *sql.TxOptions, work func(tx *sender.Tx) error) {
	t.Helper()
	err := s.Sender.InTx(t.Context(), s.DB, opts, func(tx *sender.Tx) error {
		if err := work(tx); err != nil {
			return err
		}
		_, err := tx.Send(messages("target", 1)...)
		return err
	})
	contains(t, err, "commit transaction: rolled back")
	if errors.Is(err, sender.ErrCommitUnknown) {
		t.Errorf("error %v", err)
	}
	settled(t, s, "target")
}
