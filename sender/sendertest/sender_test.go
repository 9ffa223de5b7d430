package sendertest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite" // driver

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/sender/sendertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// kinds are the two kinds of senders, each with its DB. The tests hold for both.
var kinds = map[string]func(t *testing.T, opts *sender.Options) (*sendertest.Sender, *sql.DB){
	"in memory": func(t *testing.T, opts *sender.Options) (*sendertest.Sender, *sql.DB) {
		s := sendertest.New(t, opts)
		return s, s.DB
	},
	"on SQLite": func(t *testing.T, opts *sender.Options) (*sendertest.Sender, *sql.DB) {
		db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "shop.db")+"?_pragma=journal_mode(wal)&_pragma=busy_timeout(5000)")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		if err := migrate.Ledger(t.Context(), db, migrate.SQLite); err != nil {
			t.Fatal(err)
		}
		ledger, err := sqlite.Open(t.Context(), db)
		if err != nil {
			t.Fatal(err)
		}
		return sendertest.On(t, ledger, opts), db
	},
}

var carries = []sender.Carry{sender.CarrySmall, sender.CarryNever, sender.CarryOnOutage, sender.CarryAlways}

func eachKind(t *testing.T, test func(t *testing.T, s *sendertest.Sender, db *sql.DB)) {
	for name, kind := range kinds {
		for _, carry := range carries {
			t.Run(fmt.Sprintf("%s, carry %d", name, carry), func(t *testing.T) {
				s, db := kind(t, &sender.Options{Carry: carry, OrderedShards: 2, Logger: slog.New(slog.DiscardHandler)})
				test(t, s, db)
			})
		}
	}
}

func message(body string) bridge.Message {
	return bridge.Message{RoutingKey: "emails", Publishing: amqp.Publishing{ContentType: "text/plain", Body: []byte(body)}}
}

func bodies(messages []bridge.Message) string {
	var all []string
	for _, m := range messages {
		all = append(all, string(m.Publishing.Body))
	}
	return strings.Join(all, " ")
}

func begin(t *testing.T, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func send(t *testing.T, s *sendertest.Sender, tx *sql.Tx, body string) {
	t.Helper()
	if _, err := s.SendTx(t.Context(), bridge.SQL(tx), message(body)); err != nil {
		t.Fatal(err)
	}
}

func execute(t *testing.T, tx *sql.Tx, statement string) {
	t.Helper()
	if _, err := tx.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

func TestOnlyCommittedMessagesAreListed(t *testing.T) {
	eachKind(t, func(t *testing.T, s *sendertest.Sender, db *sql.DB) {
		ctx := t.Context()
		tx := begin(t, db)
		send(t, s, tx, "open")
		if got := bodies(s.Committed()); got != "" {
			t.Errorf("before the commit: %q", got)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		tx = begin(t, db)
		send(t, s, tx, "SendTx")
		staged, err := s.StageTx(ctx, bridge.SQL(tx), message("StageTx"), bridge.Message{RoutingKey: "emails", OrderKey: "k", Publishing: amqp.Publishing{Body: []byte("in-order")}})
		if err != nil {
			t.Fatal(err)
		}
		if err := staged.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		err = s.InTx(ctx, db, nil, func(tx *sender.Tx) error {
			_, err := tx.Send(message("InTx"))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		committed := s.Committed()
		if got := bodies(committed); got != "SendTx StageTx in-order InTx" {
			t.Errorf("committed %q", got)
		}
		if got := bodies(s.Recorded()); got != "open SendTx StageTx in-order InTx" {
			t.Errorf("recorded %q", got)
		}
		m := committed[0]
		if m.ID == uuid.Nil || m.Publishing.MessageId != m.ID.String() || m.RoutingKey != "emails" || m.Publishing.ContentType != "text/plain" || len(m.Publishing.Headers) != 0 {
			t.Errorf("the receiver sees %+v", m)
		}
		if committed[2].OrderKey != "k" {
			t.Errorf("the message in order is %+v", committed[2])
		}
	})
}

func TestARollbackToASavepointTakesMessagesBack(t *testing.T) {
	eachKind(t, func(t *testing.T, s *sendertest.Sender, db *sql.DB) {
		tx := begin(t, db)
		send(t, s, tx, "before")
		execute(t, tx, `SAVEPOINT a`)
		send(t, s, tx, "lost")
		execute(t, tx, `savepoint b`)
		send(t, s, tx, "lost-too")
		execute(t, tx, `ROLLBACK TO SAVEPOINT a;`)
		send(t, s, tx, "after")
		execute(t, tx, `ROLLBACK TO a`)
		send(t, s, tx, "last")
		execute(t, tx, `RELEASE SAVEPOINT a`)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if got := bodies(s.Committed()); got != "before last" {
			t.Errorf("committed %q", got)
		}
	})
}

func TestAnInvalidMessageIsRefusedAsInProduction(t *testing.T) {
	eachKind(t, func(t *testing.T, s *sendertest.Sender, db *sql.DB) {
		tx := begin(t, db)
		if _, err := s.SendTx(t.Context(), bridge.SQL(tx), bridge.Message{}); !errors.Is(err, bridge.ErrInvalidMessage) {
			t.Errorf("without a target: %v", err)
		}
		m := message("twice")
		m.ID = uuid.Must(uuid.NewV7())
		if _, err := s.SendTx(t.Context(), bridge.SQL(tx), m, m); !errors.Is(err, bridge.ErrDuplicateID) {
			t.Errorf("one ID twice: %v", err)
		}
	})
}

func TestAnOutageFailsOnlyMessagesThatAreNotCarried(t *testing.T) {
	eachKind(t, func(t *testing.T, s *sendertest.Sender, db *sql.DB) {
		s.FailPublish(sendertest.ErrOut)
		var failed []string
		for _, name := range []string{"first", "second"} {
			err := s.InTx(t.Context(), db, nil, func(tx *sender.Tx) error {
				_, err := tx.Send(message(name))
				return err
			})
			if err != nil {
				failed = append(failed, name)
			}
			if err != nil && !bridge.Retryable(err) {
				t.Error(err)
			}
		}
		s.FailPublish(nil)
		if got := bodies(s.Committed()); len(strings.Fields(got))+len(failed) != 2 || strings.Contains(got, "first") && slices.Contains(failed, "first") {
			t.Errorf("committed %q, failed %q", got, failed)
		}
		var want []string
		switch t.Name()[len(t.Name())-1:] {
		case fmt.Sprint(int(sender.CarryNever)):
			want = []string{"first", "second"}
		case fmt.Sprint(int(sender.CarryOnOutage)):
			want = []string{"first"}
		}
		if !slices.Equal(failed, want) {
			t.Errorf("failed %q, must be %q", failed, want)
		}
	})
}

func TestARefusedMessageFailsItsTransactionForGood(t *testing.T) {
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			s, db := kind(t, &sender.Options{Carry: sender.CarryNever})
			s.FailPublish(sendertest.ErrRefused)
			tx := begin(t, db)
			if _, err := s.SendTx(t.Context(), bridge.SQL(tx), message("large")); bridge.Refusal(err) == nil || bridge.Refusal(err).Code != amqp.PreconditionFailed {
				t.Error(err)
			}
			s.FailPublish(bridge.ErrReturned)
			if _, err := s.SendTx(t.Context(), bridge.SQL(tx), message("returned")); !errors.Is(err, bridge.ErrReturned) {
				t.Error(err)
			}
		})
	}
}

func TestALostCommitMayHaveCommitted(t *testing.T) {
	for _, committed := range []bool{true, false} {
		s := sendertest.New(t, nil)
		s.LoseCommit(committed)
		err := s.InTx(t.Context(), s.DB, nil, func(tx *sender.Tx) error {
			_, err := tx.Send(message("unknown"))
			return err
		})
		if !errors.Is(err, sender.ErrCommitUnknown) {
			t.Error(err)
		}
		if got := s.Committed(); (len(got) == 1) != committed {
			t.Errorf("committed %v: %v", committed, got)
		}
	}
}

// A tester records that the test has failed.
type tester struct {
	testing.TB
	failed string
}

type fatal struct{}

func (t *tester) Helper() {}
func (t *tester) Errorf(format string, args ...any) {
	t.failed = fmt.Sprintf(format, args...)
}
func (t *tester) Fatal(args ...any) { t.failed = fmt.Sprint(args...); panic(fatal{}) }

// failure returns how f fails its test, or "".
func failure(t *testing.T, f func(testing.TB)) string {
	inner := &tester{TB: t}
	func() {
		defer func() {
			if v := recover(); v != nil && v != any(fatal{}) {
				panic(v)
			}
		}()
		f(inner)
	}()
	return inner.failed
}

// In production the message would be lost.
func TestACommitAfterAFailureFailsTheTest(t *testing.T) {
	got := failure(t, func(inner testing.TB) {
		s := sendertest.New(inner, &sender.Options{Carry: sender.CarryNever})
		tx := begin(t, s.DB)
		s.FailPublish(bridge.ErrNacked)
		if _, err := s.SendTx(t.Context(), bridge.SQL(tx), message("lost")); err == nil {
			t.Error("no error")
		}
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
		if got := s.Committed(); len(got) != 0 {
			t.Errorf("committed %v", got)
		}
	})
	if !strings.Contains(got, "is lost") {
		t.Errorf("the test fails with %q", got)
	}
}

// A foreignTx is the application's own fake.
type foreignTx struct{ statements []string }

func (f *foreignTx) Exec(_ context.Context, statement string, args ...any) (int64, error) {
	f.statements = append(f.statements, statement)
	return 1, nil
}
func (f *foreignTx) Query(context.Context, string, ...any) (bridge.Rows, error) { return nil, nil }

func TestAnOwnFakeTransactionIsRecordedAndItsOutcomeUnknown(t *testing.T) {
	got := failure(t, func(inner testing.TB) {
		s := sendertest.New(inner, nil)
		var tx foreignTx
		if _, err := s.SendTx(t.Context(), &tx, message("one"), message("two")); err != nil {
			t.Error(err)
		}
		if len(tx.statements) != 1 || !strings.HasPrefix(tx.statements[0], "INSERT INTO bridge_ledger (id) VALUES ") {
			t.Errorf("statements %q", tx.statements)
		}
		if got := bodies(s.Recorded()); got != "one two" {
			t.Errorf("recorded %q", got)
		}
		s.Committed()
	})
	if !strings.Contains(got, "outcome is unknown") {
		t.Errorf("the test fails with %q", got)
	}
}

func TestTheDatabaseInMemoryTakesEveryStatement(t *testing.T) {
	db := sendertest.New(t, nil).DB
	ctx := t.Context()
	result, err := db.ExecContext(ctx, `UPDATE orders SET x = $1`, struct{ any }{t})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := result.RowsAffected(); n != 1 || err != nil {
		t.Error(n, err)
	}
	if err := db.QueryRowContext(ctx, `SELECT 1`).Scan(new(int)); err != sql.ErrNoRows {
		t.Error(err)
	}
	prepared, err := db.PrepareContext(ctx, `DELETE FROM orders WHERE x = ?`)
	if err != nil {
		t.Fatal(err)
	}
	defer prepared.Close()
	if _, err := prepared.ExecContext(ctx, []int{1}); err != nil {
		t.Error(err)
	}
}

// A delayed message is listed with its time until a transaction that cancels it has committed. A
// message that was published cannot be cancelled.
func TestACancelledMessageIsNotListed(t *testing.T) {
	eachKind(t, func(t *testing.T, s *sendertest.Sender, db *sql.DB) {
		delayed, other := message("reminder"), message("now")
		delayed.NotBefore = time.Now().Add(time.Hour).Truncate(time.Millisecond)
		end := func(end func() error) {
			t.Helper()
			if err := end(); err != nil {
				t.Fatal(err)
			}
		}
		tx := begin(t, db)
		ids, err := s.SendTx(t.Context(), bridge.SQL(tx), delayed, other)
		if err != nil {
			t.Fatal(err)
		}
		end(tx.Commit)
		expect := func(want string) {
			t.Helper()
			if got := bodies(s.Committed()); got != want {
				t.Errorf("%q are committed, must be %q", got, want)
			}
		}
		if all := s.Committed(); len(all) != 2 || !all[0].NotBefore.Equal(delayed.NotBefore) || !all[1].NotBefore.IsZero() {
			t.Errorf("%v are committed", all)
		}
		cancel := func(tx *sql.Tx, id uuid.UUID, want bool) {
			t.Helper()
			if done, err := s.Cancel(t.Context(), bridge.SQL(tx), id); done != want || err != nil {
				t.Errorf("cancel returns %t, %v, must return %t", done, err, want)
			}
		}
		tx = begin(t, db)
		cancel(tx, ids[0], true)
		cancel(tx, ids[0], false)
		end(tx.Rollback)
		expect("reminder now")

		tx = begin(t, db)
		execute(t, tx, "SAVEPOINT one")
		cancel(tx, ids[0], true)
		execute(t, tx, "ROLLBACK TO one")
		end(tx.Commit)
		expect("reminder now")

		tx = begin(t, db)
		cancel(tx, ids[0], true)
		cancel(tx, ids[1], false)
		cancel(tx, uuid.New(), false)
		end(tx.Commit)
		expect("now")
	})
}
