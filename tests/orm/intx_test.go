package orm

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
	"gorm.io/gorm"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/sender/bunsender"
	"github.com/twoqueue/twoqueue/sender/gormsender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// An inTxFunc is an InTx of a library.
type inTxFunc func(ctx context.Context, s *sender.Sender, fn func(tx transaction) error) error

// A transaction is the argument of the function of such an InTx.
type transaction struct {
	messages interface {
		Send(...bridge.Message) ([]uuid.UUID, error)
		Stage(context.Context, ...bridge.Message) ([]uuid.UUID, error)
	}
	tx    bridge.Tx
	place func(order string) error
	exec  func(statement string) error
	inner func(fn func(tx transaction) error) error // in a savepoint; its messages are the outer one's
}

func byGORM(db *gorm.DB) inTxFunc {
	return func(ctx context.Context, s *sender.Sender, fn func(tx transaction) error) error {
		return gormsender.InTx(ctx, s, db, nil, func(tx *gormsender.Tx) error { return fn(inGORM(tx, tx.DB)) })
	}
}

func inGORM(tx *gormsender.Tx, db *gorm.DB) transaction {
	return transaction{
		tx, tx.BridgeTx(),
		func(body string) error { return db.Create(&order{Body: body}).Error },
		func(statement string) error { return db.Exec(statement).Error },
		func(fn func(tx transaction) error) error {
			return db.Transaction(func(inner *gorm.DB) error { return fn(inGORM(tx, inner)) })
		},
	}
}

func byBun(db *bun.DB) inTxFunc {
	return func(ctx context.Context, s *sender.Sender, fn func(tx transaction) error) error {
		return bunsender.InTx(ctx, s, db, nil, func(tx *bunsender.Tx) error { return fn(inBun(ctx, tx, tx)) })
	}
}

func inBun(ctx context.Context, tx *bunsender.Tx, db bun.IDB) transaction {
	return transaction{
		tx, tx.BridgeTx(),
		func(body string) error {
			_, err := db.NewInsert().Model(&order{Body: body}).Exec(ctx)
			return err
		},
		func(statement string) error {
			_, err := db.ExecContext(ctx, statement)
			return err
		},
		func(fn func(tx transaction) error) error {
			return db.RunInTx(ctx, nil, func(ctx context.Context, inner bun.Tx) error { return fn(inBun(ctx, tx, inner)) })
		},
	}
}

var doors = map[string]func(t *testing.T, url string) inTxFunc{
	"GORM":             func(t *testing.T, url string) inTxFunc { return byGORM(openGORM(t, url, false)) },
	"GORM, statements": func(t *testing.T, url string) inTxFunc { return byGORM(openGORM(t, url, true)) },
	"bun":              func(t *testing.T, url string) inTxFunc { return byBun(openBun(t, url)) },
}

// usesInTx sends by InTx.
type usesInTx struct {
	inTx
	inTxFunc
}

func (p usesInTx) send(ctx context.Context, s *sender.Sender, order string, end error) error {
	return p.inTxFunc(ctx, s, func(tx transaction) error {
		if err := tx.place(order); err != nil {
			return err
		}
		if _, err := tx.messages.Send(about(order)); err != nil {
			return err
		}
		return end
	})
}

func onEachAPI(t *testing.T, test func(t *testing.T, s *stage.Stage, open func(t *testing.T, url string) inTxFunc)) {
	for name, open := range doors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newShop(t), open)
		})
	}
}

func TestInTxSendsCommittedMessagesOnly(t *testing.T) {
	t.Parallel()
	onEachAPI(t, func(t *testing.T, s *stage.Stage, open func(t *testing.T, url string) inTxFunc) {
		ctx := t.Context()
		inTx := open(t, s.DatabaseURL)
		if _, err := s.DB.ExecContext(ctx, `CREATE TABLE items (o bigint REFERENCES orders DEFERRABLE INITIALLY DEFERRED)`); err != nil {
			t.Fatal(err)
		}
		var kept transaction
		fails := func(what string, want error, fn func(tx transaction) error) {
			t.Helper()
			err := inTx(ctx, s.Sender, func(tx transaction) error {
				kept = tx
				if _, err := tx.messages.Send(about(what)); err != nil {
					return err
				}
				if _, err := tx.messages.Stage(ctx, about(what)); err != nil {
					return err
				}
				return errors.Join(tx.place(what), fn(tx))
			})
			if err == nil || errors.Is(err, sender.ErrCommitUnknown) || want != nil && !errors.Is(err, want) || want == nil && !strings.Contains(err.Error(), "commit transaction: rolled back") {
				t.Errorf("%s: error %v", what, err)
			}
		}
		fails("fn fails", errUndone, func(transaction) error { return errUndone })
		fails("a message cannot be sent", bridge.ErrInvalidMessage, func(tx transaction) error {
			_, _ = tx.messages.Send(bridge.Message{})
			return nil
		})
		fails("the COMMIT is refused", nil, func(tx transaction) error { return tx.exec(`INSERT INTO items VALUES (-1)`) })
		if _, err := kept.messages.Send(about("late")); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("sent when fn has returned: %v", err)
		}
		if _, err := kept.tx.Exec(ctx, `SELECT 1`); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("a statement when fn has returned: %v", err)
		}
		func() {
			defer func() { _ = recover() }()
			fails("fn panics", nil, func(transaction) error { panic("out of stock") })
		}()
		wantOrders(t, s)
		if n := s.Rows(); n != 0 {
			t.Errorf("%d rows in the ledger", n)
		}
		// A transaction in it is a savepoint, whose rollback undoes a Stage.
		if err := inTx(ctx, s.Sender, func(tx transaction) error {
			if err := tx.inner(func(inner transaction) error {
				_, err := tx.messages.Stage(ctx, about("three pears"))
				return errors.Join(err, inner.place("three pears"), errUndone)
			}); !errors.Is(err, errUndone) {
				return err
			}
			if err := tx.inner(func(inner transaction) error { return inner.place("two apples") }); err != nil {
				return err
			}
			_, err := tx.messages.Send(about("two apples"))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		wantOrders(t, s, "two apples")
		v := s.Verify(verifier.Options{})
		defer v.Stop()
		if d := s.Receive("orders", 1)[0]; string(d.Body) != "two apples" {
			t.Errorf("received %q", d.Body)
		}
		s.Eventually("nothing is staged", func() bool { return len(s.Staged()) == 0 && v.State().Held == 0 })
		if n := s.Depth("orders"); n != 0 {
			t.Errorf("%d messages of the rolled-back transaction", n)
		}
	})
}

// A recorder tells when it has recorded.
type recorder struct {
	driver.Recorder
	after func()
}

func (r recorder) Record(ctx context.Context, tx bridge.Tx, entries []driver.Entry) error {
	defer r.after()
	return r.Recorder.Record(ctx, tx, entries)
}

// The database commits, and its answer gets lost.
func TestInTxKnowsAnUnknownCommit(t *testing.T) {
	t.Parallel()
	onEachAPI(t, func(t *testing.T, s *stage.Stage, open func(t *testing.T, url string) inTxFunc) {
		valve, url := servertest.Through(t, s.DatabaseURL)
		inTx := open(t, url)
		holds, err := sender.New(recorder{s.Ledger, valve.HoldReplies}, s.Broker, &sender.Options{Queue: "staging", Timeout: stage.Patience, Carry: sender.CarryNever})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- usesInTx{inTxFunc: inTx}.send(t.Context(), holds, "two apples", nil) }()
		s.Eventually("committed", func() bool {
			var n int
			return s.DB.QueryRowContext(t.Context(), `SELECT count(*) FROM orders`).Scan(&n) == nil && n == 1
		})
		if len(ended) != 0 {
			t.Fatalf("ended without an answer: %v", <-ended)
		}
		valve.Cut()
		valve.Release()
		if err := servertest.Next(t, "InTx returns", ended); !errors.Is(err, sender.ErrCommitUnknown) || bridge.Retryable(err) {
			t.Errorf("error %v", err)
		}
		v := s.Verify(verifier.Options{})
		defer v.Stop()
		if d := s.Receive("orders", 1)[0]; string(d.Body) != "two apples" {
			t.Errorf("received %q", d.Body)
		}
	})
}

// A Commit by GORM itself would leave the messages behind.
func TestOnlyInTxEndsATransactionOfGORM(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	db := openGORM(t, s.DatabaseURL, false)
	for name, end := range map[string]func(*gorm.DB) *gorm.DB{"Commit": (*gorm.DB).Commit, "Rollback": (*gorm.DB).Rollback} {
		err := gormsender.InTx(t.Context(), s.Sender, db, nil, func(tx *gormsender.Tx) error {
			if err := tx.Create(&order{Body: name}).Error; err != nil {
				return err
			}
			if err := end(tx.Session(&gorm.Session{})).Error; err == nil {
				t.Errorf("%s of GORM has worked", name)
			}
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), "InTx ends the transaction") {
			t.Errorf("after %s: %v", name, err)
		}
	}
	wantOrders(t, s)
	if err := db.Transaction(func(tx *gorm.DB) error {
		return gormsender.InTx(t.Context(), s.Sender, tx, nil, func(*gormsender.Tx) error { return nil })
	}); err == nil || !strings.Contains(err.Error(), "SendTx") {
		t.Errorf("in a transaction: %v", err)
	}
	limited := db.Session(&gorm.Session{})
	limited.DefaultTransactionTimeout = time.Hour
	if err := gormsender.InTx(t.Context(), s.Sender, limited, nil, func(tx *gormsender.Tx) error {
		if _, ends := tx.Statement.Context.Deadline(); !ends {
			t.Error("DefaultTransactionTimeout is ignored")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
