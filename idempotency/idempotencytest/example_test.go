package idempotencytest_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	_ "modernc.org/sqlite" // driver

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/idempotencytest"
)

// A mailer is the receiver to test.
type mailer struct {
	db    *sql.DB
	dedup *idempotency.Deduplicator
}

func (m *mailer) handle(ctx context.Context, d amqp.Delivery) error {
	return m.dedup.Handle(ctx, m.db, d, func(ctx context.Context, tx *sql.Tx) error {
		if len(d.Body) == 0 {
			return errors.New("there is no text")
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO emails VALUES (?)`, d.Body)
		return err
	})
}

// newMailer returns a mailer on a SQLite file, which dead-letters a message at the first failure.
func newMailer(t *testing.T) *mailer {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "mailer.db")+"?_pragma=journal_mode(wal)&_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if err := migrate.Inbox(t.Context(), db, migrate.SQLite); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE emails (body BLOB)`); err != nil {
		t.Fatal(err)
	}
	inbox, err := sqlite.OpenInbox(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	dedup, err := idempotency.New(inbox, "mailer", &idempotency.Options{DeadLetterExchange: true, Attempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	return &mailer{db, dedup}
}

func (m *mailer) emails(t *testing.T) (n int) {
	t.Helper()
	if err := m.db.QueryRowContext(t.Context(), `SELECT count(*) FROM emails`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAnEmailThatIsDeliveredTwiceIsSentOnce(t *testing.T) {
	m := newMailer(t)
	first := idempotencytest.New(bridge.Message{RoutingKey: "emails", Publishing: amqp.Publishing{Body: []byte("two apples")}})
	for _, d := range []*idempotencytest.Delivery{first, first.Again()} {
		if err := m.handle(t.Context(), d.Delivery); err != nil {
			t.Error(err)
		}
		if d.Outcome() != idempotencytest.Acked {
			t.Errorf("the message is %s", d.Outcome())
		}
	}
	if n := m.emails(t); n != 1 {
		t.Errorf("%d emails, must be 1", n)
	}
}

func TestAnEmailWithoutTextIsDeadLettered(t *testing.T) {
	m := newMailer(t)
	d := idempotencytest.New(bridge.Message{RoutingKey: "emails"})
	if err := m.handle(t.Context(), d.Delivery); err != nil {
		t.Error(err)
	}
	if d.Outcome() != idempotencytest.DeadLettered {
		t.Errorf("the message is %s", d.Outcome())
	}
}
