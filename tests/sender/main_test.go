// Package sender_test checks a sender against the rules of package bridge, on real servers.
package sender_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/sender/pgxsender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

func TestMain(m *testing.M) { servertest.Main(m) }

func onAll(t *testing.T, test func(t *testing.T, s *stage.Stage)) {
	for _, kind := range stage.Databases {
		t.Run(kind.Name, func(t *testing.T) { test(t, stage.New(t, kind)) })
	}
}

// begin begins a transaction that is rolled back at the end of the test at the latest.
func begin(t *testing.T, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// messages returns n messages for a queue, with bodies 0, 1, 2, …
func messages(queue string, n int) []bridge.Message {
	out := make([]bridge.Message, n)
	for i := range out {
		out[i] = stage.To(queue, fmt.Sprint(i))
	}
	return out
}

// newSender returns a further sender, which carries nothing.
func newSender(t *testing.T, ledger driver.Recorder, broker *bridge.Broker, timeout time.Duration) *sender.Sender {
	t.Helper()
	s, err := sender.New(ledger, broker, &sender.Options{Queue: "staging", Timeout: timeout, Carry: sender.CarryNever})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// recorder records in a ledger, and calls functions before and after.
type recorder struct {
	driver.Recorder
	before func() error
	after  func()
}

func (r *recorder) Record(ctx context.Context, tx bridge.Tx, entries []driver.Entry) error {
	if r.before != nil {
		if err := r.before(); err != nil {
			return err
		}
	}
	err := r.Recorder.Record(ctx, tx, entries)
	if r.after != nil {
		r.after()
	}
	return err
}

// settled runs a verifier until it has judged all messages of the staging queue. It then expects
// exactly these messages at the target queue, and no row in the ledger.
func settled(t *testing.T, s *stage.Stage, queue string, want ...uuid.UUID) {
	t.Helper()
	staged := len(s.Staged())
	v := s.Verify(verifier.Options{})
	s.Evidence()
	s.Eventually("all are judged", func() bool {
		stats := v.Stats()
		return stats.Dropped+stats.Forwarded > int64(staged) && s.Depth(s.Topology.Queue) == 0 && v.State().Held == 0
	})
	v.Stop()
	s.WaitEmpty(s.Topology.Queue)
	s.WantOnce(queue, want...)
	if n := s.Rows(); n != 0 {
		t.Errorf("%d rows are left in the ledger", n)
	}
}

func contains(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v does not contain %q", err, text)
	}
}

// shop creates a table of the application, which shows the transaction's outcome.
func shop(t *testing.T, s *stage.Stage) {
	t.Helper()
	s.Queue("target", nil)
	if _, err := s.DB.ExecContext(t.Context(), "CREATE TABLE orders (id INTEGER PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
}

const insertOrder = "INSERT INTO orders VALUES ($1)"

func order(ctx context.Context, tx bridge.Tx, id int) error {
	_, err := tx.Exec(ctx, insertOrder, id)
	return err
}

func orders(t *testing.T, s *stage.Stage) (n int) {
	t.Helper()
	if err := s.DB.QueryRowContext(t.Context(), "SELECT count(*) FROM orders").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// inTxAPI is one of the functions that run InTx of the stage's sender.
type inTxAPI struct {
	inTx func(ctx context.Context, fn func(transaction) error) error
	busy func() int // connections in use
}

// transaction is the transaction that InTx gives to fn.
type transaction struct {
	bridge.Tx
	messages interface {
		Send(...bridge.Message) ([]uuid.UUID, error)
		Stage(context.Context, ...bridge.Message) ([]uuid.UUID, error)
	}
	try func(ctx context.Context) map[string]error // runs a statement by each of its methods
}

func bySQL(s *stage.Stage, db *sql.DB) inTxAPI {
	return inTxAPI{
		inTx: func(ctx context.Context, fn func(transaction) error) error {
			return s.Sender.InTx(ctx, db, nil, func(tx *sender.Tx) error {
				return fn(transaction{tx, tx, func(ctx context.Context) map[string]error { return trySQL(ctx, db, tx) }})
			})
		},
		busy: func() int { return db.Stats().InUse },
	}
}

func trySQL(ctx context.Context, db *sql.DB, tx *sender.Tx) map[string]error {
	const query = "SELECT 1"
	results := make(map[string]error)
	_, results["ExecContext"] = tx.ExecContext(ctx, query)
	rows, err := tx.QueryContext(ctx, query)
	if err == nil {
		err = errors.Join(rows.Err(), rows.Close())
	}
	results["QueryContext"] = err
	results["QueryRowContext"] = tx.QueryRowContext(ctx, query).Scan(new(int))
	statement, err := tx.PrepareContext(ctx, query)
	if err == nil {
		err = statement.Close()
	}
	results["PrepareContext"] = err
	prepared, err := db.PrepareContext(ctx, query)
	if err == nil {
		_, err = tx.StmtContext(ctx, prepared).ExecContext(ctx)
		_ = prepared.Close()
	}
	results["StmtContext"] = err
	return results
}

func byPgx(s *stage.Stage, pool *pgxpool.Pool) inTxAPI {
	return inTxAPI{
		inTx: func(ctx context.Context, fn func(transaction) error) error {
			return pgxsender.InTx(ctx, s.Sender, pool, pgx.TxOptions{}, func(tx *pgxsender.Tx) error {
				return fn(transaction{tx.BridgeTx(), tx, func(ctx context.Context) map[string]error { return tryPgx(ctx, tx) }})
			})
		},
		busy: func() int { return int(pool.Stat().AcquiredConns()) },
	}
}

func tryPgx(ctx context.Context, tx *pgxsender.Tx) map[string]error {
	const query = "SELECT 1"
	results := make(map[string]error)
	_, results["Exec"] = tx.Exec(ctx, query)
	batch := new(pgx.Batch)
	batch.Queue(query)
	results["SendBatch"] = tx.SendBatch(ctx, batch)
	rows, err := tx.Query(ctx, query)
	if err == nil {
		rows.Close()
	}
	results["Query"] = err
	results["QueryRow"] = tx.QueryRow(ctx, query).Scan(new(int))
	_, results["CopyFrom"] = tx.CopyFrom(ctx, pgx.Identifier{"orders"}, []string{"id"}, pgx.CopyFromRows(nil))
	_, results["BridgeTx().Exec"] = tx.BridgeTx().Exec(ctx, query)
	found, err := tx.BridgeTx().Query(ctx, query)
	if err == nil {
		found.Close()
	}
	results["BridgeTx().Query"] = err
	return results
}

// onEachAPI runs a test on a shop of its own for each API.
func onEachAPI(t *testing.T, test func(t *testing.T, s *stage.Stage, d inTxAPI)) {
	for name, kind := range map[string]stage.Database{"postgres": stage.Postgres, "sqlite": stage.SQLite, "pgx": stage.Postgres} {
		t.Run(name, func(t *testing.T) {
			s := stage.New(t, kind)
			shop(t, s)
			d := bySQL(s, s.DB)
			if name == "pgx" {
				d = byPgx(s, newPool(t, s.DatabaseURL))
			}
			test(t, s, d)
		})
	}
}
