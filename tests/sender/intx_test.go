package sender_test

import (
	"context"
	"database/sql"
	"errors"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	_ "github.com/lib/pq" // a second driver for PostgreSQL

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/sender/pgxsender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// A Commit in fn would commit without the messages. So fn can reach neither Commit nor the
// underlying transaction.
func TestOnlyATransactionCanSendAndFnCannotEndIt(t *testing.T) {
	t.Parallel()
	bySQL, byPgx := reflect.TypeFor[bridge.SQLTx](), reflect.TypeFor[pgx.Tx]()
	for kind, want := range map[reflect.Type]bool{
		reflect.TypeFor[*sql.Tx]():       true,
		reflect.TypeFor[*sqlx.Tx]():      true,
		reflect.TypeFor[*pgxpool.Tx]():   true,
		reflect.TypeFor[*sql.DB]():       false,
		reflect.TypeFor[*sql.Conn]():     false,
		reflect.TypeFor[*sqlx.DB]():      false,
		reflect.TypeFor[*sqlx.Conn]():    false,
		reflect.TypeFor[*pgxpool.Pool](): false,
		reflect.TypeFor[*pgxpool.Conn](): false,
		reflect.TypeFor[*pgx.Conn]():     false,
	} {
		if got := kind.Implements(bySQL) || kind.Implements(byPgx); got != want {
			t.Errorf("%v can send: %t", kind, got)
		}
	}
	for _, kind := range []reflect.Type{reflect.TypeFor[sender.Tx](), reflect.TypeFor[pgxsender.Tx]()} {
		for _, method := range []string{"Commit", "Rollback", "Conn"} {
			if _, ok := reflect.PointerTo(kind).MethodByName(method); ok {
				t.Errorf("a %v has the method %s", kind, method)
			}
		}
		for _, field := range reflect.VisibleFields(kind) {
			if field.IsExported() {
				t.Errorf("a %v has the field %s", kind, field.Name)
			}
		}
	}
}

func TestInTxCommitsTheWorkAndTheMessages(t *testing.T) {
	t.Parallel()
	onEachAPI(t, func(t *testing.T, s *stage.Stage, d inTxAPI) {
		var ids []uuid.UUID
		err := d.inTx(t.Context(), func(tx transaction) error {
			own := stage.To("target", "own ID")
			own.ID = uuid.New()
			for _, msgs := range [][]bridge.Message{messages("target", 2), nil, {own}} {
				more, err := tx.messages.Send(msgs...)
				if err != nil {
					return err
				}
				ids = append(ids, more...)
			}
			if ids[2] != own.ID || ids[0] == ids[1] || ids[0].Version() != 7 {
				t.Errorf("IDs %v", ids)
			}
			if n := s.Depth("staging"); n != 0 {
				t.Errorf("%d messages were staged before fn had ended", n)
			}
			early, err := tx.messages.Stage(t.Context(), messages("target", 1)...)
			if err != nil {
				return err
			}
			ids = append(ids, early...)
			s.WaitDepth("staging", 1) // while the transaction is open
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
	invalid := stage.To("", "no target")
	onEachAPI(t, func(t *testing.T, s *stage.Stage, d inTxAPI) {
		inTx := func(fn func(tx transaction) error) (err error) {
			defer func() {
				if r := recover(); r != nil {
					err = r.(error)
				}
			}()
			return d.inTx(t.Context(), func(tx transaction) error {
				if _, err := tx.messages.Send(messages("target", 2)...); err != nil {
					return err
				}
				if err := order(t.Context(), tx, 1); err != nil {
					return err
				}
				return fn(tx)
			})
		}
		for name, test := range map[string]struct {
			fn   func(tx transaction) error
			want error
		}{
			"when fn fails":  {func(transaction) error { return wrong }, wrong},
			"when fn panics": {func(transaction) error { panic(wrong) }, wrong},
			"when Send fails, even if fn returns nil": {func(tx transaction) error {
				if ids, err := tx.messages.Send(invalid); !errors.Is(err, bridge.ErrInvalidMessage) || len(ids) != 0 {
					t.Errorf("Send: IDs %v, error %v", ids, err)
				}
				return nil
			}, bridge.ErrInvalidMessage},
		} {
			t.Run(name, func(t *testing.T) {
				if err := inTx(test.fn); !errors.Is(err, test.want) || errors.Is(err, sender.ErrCommitUnknown) {
					t.Errorf("error %v", err)
				}
			})
		}
		t.Run("when the staging fails", func(t *testing.T) {
			if _, err := s.Channel.QueueDelete("staging", false, false, false); err != nil {
				t.Fatal(err)
			}
			err := inTx(func(transaction) error { return nil })
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
		if n := d.busy(); n != 0 {
			t.Errorf("%d connections are still in use", n)
		}
		settled(t, s, "target")
	})
}

// InTx rolls back even if fn ignores the error of Stage.
func TestInTxRollsBackIfStageFailsEvenIfFnReturnsNil(t *testing.T) {
	t.Parallel()
	onEachAPI(t, func(t *testing.T, s *stage.Stage, d inTxAPI) {
		known := stage.To("target", "known")
		known.ID = s.Commit(known)[0]
		for want, m := range map[error]bridge.Message{bridge.ErrInvalidMessage: stage.To("", "no target"), bridge.ErrDuplicateID: known} {
			err := d.inTx(t.Context(), func(tx transaction) error {
				if _, err := tx.messages.Stage(t.Context(), messages("target", 2)...); err != nil {
					return err
				}
				if err := order(t.Context(), tx, 1); err != nil {
					return err
				}
				if ids, err := tx.messages.Stage(t.Context(), m); !errors.Is(err, want) || len(ids) != 0 {
					t.Errorf("Stage: IDs %v, error %v", ids, err)
				}
				return nil
			})
			if !errors.Is(err, want) || errors.Is(err, sender.ErrCommitUnknown) {
				t.Errorf("want %v, committed or failed otherwise: %v", want, err)
			}
			if n := orders(t, s); n != 0 {
				t.Errorf("%d orders are committed", n)
			}
		}
		settled(t, s, "target", known.ID)
	})
}

func TestInTxDoesNotCommitAfterTheContextHasEnded(t *testing.T) {
	t.Parallel()
	onEachAPI(t, func(t *testing.T, s *stage.Stage, d inTxAPI) {
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("the customer is gone")
		err := d.inTx(ctx, func(tx transaction) error {
			err := order(t.Context(), tx, 1)
			cancel(gone)
			return err // and no message to send
		})
		if !errors.Is(err, gone) || errors.Is(err, sender.ErrCommitUnknown) {
			t.Errorf("error %v", err)
		}
		if n := orders(t, s); n != 0 {
			t.Errorf("%d orders", n)
		}
	})
}

// After fn has returned, its transaction accepts no statement, from a variable or from a
// goroutine. Such a statement would run after the record of the messages, or between fn's return
// and the COMMIT.
func TestATransactionIsOverWhenFnHasReturned(t *testing.T) {
	t.Parallel()
	wrong := errors.New("out of stock")
	onEachAPI(t, func(t *testing.T, s *stage.Stage, d inTxAPI) {
		ctx := t.Context()
		var kept transaction
		try := func() map[string]error {
			results := kept.try(ctx)
			_, results["Send"] = kept.messages.Send(messages("target", 1)...)
			_, results["Stage"] = kept.messages.Stage(ctx, messages("target", 1)...)
			return results
		}
		expect := func(when string, results map[string]error) {
			t.Helper()
			for method, err := range results {
				if !errors.Is(err, sql.ErrTxDone) || !strings.Contains(err.Error(), "InTx") {
					t.Errorf("%s after fn has returned, %s: %v, must be %v and name InTx", method, when, err, sql.ErrTxDone)
				}
			}
		}
		for when, fn := range map[string]func(transaction) error{
			"nothing done": func(transaction) error { return nil },
			"failed":       func(transaction) error { return wrong },
			"rolled back":  func(tx transaction) error { return errors.Join(wrong, order(ctx, tx, 1)) },
		} {
			if err := d.inTx(ctx, func(tx transaction) error {
				kept = tx
				return fn(tx)
			}); err != nil && !errors.Is(err, wrong) {
				t.Fatal(err)
			}
			expect(when, try())
		}
		var beforeCommit map[string]error
		s.Sender = newSender(t, &recorder{Recorder: s.Ledger, before: func() error { beforeCommit = try(); return nil }}, s.Broker, stage.Patience)
		var ids []uuid.UUID
		if err := d.inTx(ctx, func(tx transaction) (err error) {
			kept = tx
			for method, err := range tx.try(ctx) {
				if err != nil {
					t.Errorf("%s in fn: %v", method, err)
				}
			}
			ids, err = tx.messages.Send(messages("target", 1)...)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		expect("before COMMIT", beforeCommit)
		expect("after COMMIT", try())
		settled(t, s, "target", ids...)
	})
}

// Goroutines send and stage messages while fn returns. Each message that gets an ID is delivered,
// and each other one gets an error.
func TestAMessageSentBesideFnIsDeliveredOrAnError(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	shop(t, s)
	var mu sync.Mutex
	var sent []uuid.UUID
	for _, test := range []struct {
		goroutines int
		add        func(tx *sender.Tx) ([]uuid.UUID, error)
	}{
		{4, func(tx *sender.Tx) ([]uuid.UUID, error) { return tx.Send(messages("target", 1)...) }},
		{1, func(tx *sender.Tx) ([]uuid.UUID, error) { return tx.Stage(t.Context(), messages("target", 1)...) }},
	} {
		var senders sync.WaitGroup
		var over atomic.Bool
		began := make(chan struct{}, 1)
		if err := s.Sender.InTx(t.Context(), s.DB, nil, func(tx *sender.Tx) error {
			for range test.goroutines {
				senders.Go(func() {
					for {
						late := over.Load()
						ids, err := test.add(tx)
						select {
						case began <- struct{}{}:
						default:
						}
						if err != nil || late {
							if !errors.Is(err, sql.ErrTxDone) {
								t.Errorf("after fn has returned: %v", err)
							}
							return
						}
						mu.Lock()
						sent = append(sent, ids...)
						mu.Unlock()
					}
				})
			}
			servertest.Next(t, "a sender begins", began)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		over.Store(true)
		senders.Wait()
	}
	settled(t, s, "target", sent...)
}

// The reply to the COMMIT is lost: in one case the COMMIT was executed, in the other it never
// arrived. The sender cannot know which; the verifier can.
func TestALostAnswerToTheCOMMITIsUnknown(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T, s *stage.Stage, address string, counted *trips) inTxAPI{
		"database/sql": func(t *testing.T, s *stage.Stage, address string, counted *trips) inTxAPI {
			config, err := pgx.ParseConfig(address)
			if err != nil {
				t.Fatal(err)
			}
			config.DialFunc = counted.dial
			db := stdlib.OpenDB(*config)
			t.Cleanup(func() { _ = db.Close() })
			return bySQL(s, db)
		},
		"pgx": func(t *testing.T, s *stage.Stage, address string, counted *trips) inTxAPI {
			return byPgx(s, newPool(t, address, func(c *pgxpool.Config) { c.ConnConfig.DialFunc = counted.dial }))
		},
	} {
		for _, executed := range []bool{true, false} {
			t.Run(name+map[bool]string{true: ", executed", false: ", not executed"}[executed], func(t *testing.T) {
				t.Parallel()
				s := stage.New(t, stage.Postgres)
				shop(t, s)
				valve, address := servertest.Through(t, s.DatabaseURL)
				var counted trips
				d := open(t, s, address, &counted)
				hold := valve.HoldRequests
				if executed {
					hold = valve.HoldReplies
				}
				held := make(chan int64, 1) // between Record and COMMIT the database gets no request
				r := &recorder{Recorder: s.Ledger, after: func() { hold(); held <- counted.n.Load() }}
				s.Sender = newSender(t, r, s.Broker, stage.Patience)
				ended := make(chan error, 1)
				var ids []uuid.UUID
				go func() {
					ended <- d.inTx(t.Context(), func(tx transaction) error {
						if err := order(t.Context(), tx, 1); err != nil {
							return err
						}
						var err error
						ids, err = tx.messages.Send(messages("target", 1)...)
						return err
					})
				}()
				before := servertest.Next(t, "the messages are recorded", held)
				s.Eventually("the COMMIT is sent", func() bool { return counted.n.Load() > before })
				if executed {
					s.Eventually("committed", func() bool { return orders(t, s) == 1 })
				}
				if len(ended) > 0 {
					t.Fatalf("ended without an answer: %v", <-ended)
				}
				valve.Cut()
				valve.Release() // for a driver that asks the database to cancel the failed statement
				if err := servertest.Next(t, "InTx returns", ended); !errors.Is(err, sender.ErrCommitUnknown) {
					t.Errorf("error %v", err)
				}
				if !executed {
					ids = nil
				}
				settled(t, s, "target", ids...)
			})
		}
	}
}

// The database answers the COMMIT with a rollback, so the outcome is known.
func TestARefusedCOMMITIsARollback(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	count := func(tx bridge.Tx) error {
		rows, err := tx.Query(ctx, "SELECT count(*) FROM orders")
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
		}
		return rows.Err()
	}
	serializable := func(tx bridge.Tx) error {
		if _, err := tx.Exec(ctx, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"); err != nil {
			return err
		}
		return count(tx)
	}
	for name, open := range map[string]func(t *testing.T, s *stage.Stage) inTxAPI{
		"database/sql": func(_ *testing.T, s *stage.Stage) inTxAPI { return bySQL(s, s.DB) },
		"pgx":          func(t *testing.T, s *stage.Stage) inTxAPI { return byPgx(s, newPool(t, s.DatabaseURL)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, stage.Postgres)
			shop(t, s)
			if _, err := s.DB.ExecContext(ctx, "CREATE TABLE items (o INTEGER REFERENCES orders DEFERRABLE INITIALLY DEFERRED)"); err != nil {
				t.Fatal(err)
			}
			d := open(t, s)
			refused := func(work func(tx transaction) error) {
				t.Helper()
				err := d.inTx(ctx, func(tx transaction) error {
					if err := work(tx); err != nil {
						return err
					}
					_, err := tx.messages.Send(messages("target", 1)...)
					return err
				})
				contains(t, err, "commit transaction: rolled back")
				if errors.Is(err, sender.ErrCommitUnknown) {
					t.Errorf("error %v", err)
				}
			}
			refused(func(tx transaction) error { // a deferred constraint
				_, err := tx.Exec(ctx, "INSERT INTO items VALUES (7)")
				return err
			})
			// Each of the two transactions reads the rows that the other one writes, so the last
			// to commit fails.
			other := begin(t, s.DB)
			if err := serializable(bridge.SQL(other)); err != nil {
				t.Fatal(err)
			}
			s.Sender = newSender(t, &recorder{Recorder: s.Ledger, after: func() {
				if err := errors.Join(order(ctx, bridge.SQL(other), 2), other.Commit()); err != nil {
					t.Error(err)
				}
			}}, s.Broker, stage.Patience)
			refused(func(tx transaction) error { return errors.Join(serializable(tx), order(ctx, tx, 1)) })
			settled(t, s, "target")
		})
	}
}

// A statement has failed and fn returns nil. PostgreSQL answers the COMMIT with ROLLBACK, which
// each driver reports in its own words.
func TestACOMMITOfAFailedTransactionIsARollback(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := stage.New(t, stage.Postgres)
	shop(t, s)
	for _, driver := range []string{"pgx", "postgres"} {
		t.Run(driver, func(t *testing.T) {
			db, err := sql.Open(driver, s.DatabaseURL)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			err = s.Sender.InTx(ctx, db, nil, func(tx *sender.Tx) error {
				if _, err := tx.Stage(ctx, messages("target", 1)...); err != nil {
					return err
				}
				if _, err := tx.ExecContext(ctx, "SELECT 1/0"); err == nil {
					t.Error("the statement has not failed")
				}
				return nil
			})
			contains(t, err, "commit transaction: rolled back")
			if errors.Is(err, sender.ErrCommitUnknown) {
				t.Errorf("error %v", err)
			}
		})
	}
	settled(t, s, "target")
}

// The server is a primary; only the transaction is read-only.
func TestAReadOnlyTransactionIsNotTakenForAStandby(t *testing.T) {
	t.Parallel()
	for _, kind := range []stage.Database{stage.Postgres, stage.MariaDB} {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, kind)
			err := s.Sender.InTx(t.Context(), s.DB, &sql.TxOptions{ReadOnly: true}, func(tx *sender.Tx) error {
				_, err := tx.Send(messages("target", 1)...)
				return err
			})
			if !errors.Is(err, bridge.ErrReadOnly) || errors.Is(err, bridge.ErrNotPrimary) {
				t.Errorf("error %v", err)
			}
			contains(t, err, "begin it read-write")
		})
	}
}
