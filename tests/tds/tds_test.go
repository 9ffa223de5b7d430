package tds_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	mssql "github.com/microsoft/go-mssqldb"
	"go.uber.org/goleak"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/tds"
)

// The tests of tests/sqlserver cover waiting, skipping, ignoring hints and undoing: they would fail
// otherwise. The tests here cover the rest of the model.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	insert       = "INSERT INTO orders (id) VALUES ('a')"
	insertLedger = "INSERT INTO bridge_ledger (id) SELECT CAST(@p1 AS uniqueidentifier) FROM bridge_identity WHERE [identity] = CAST(@p2 AS uniqueidentifier)"
	find         = "SELECT count(*) FROM bridge_ledger WHERE id = CAST(@p1 AS uniqueidentifier)"
	findLocked   = "SELECT count(*) FROM bridge_ledger WITH (READCOMMITTEDLOCK, ROWLOCK) WHERE id = CAST(@p1 AS uniqueidentifier)"
	findPast     = "SELECT count(*) FROM bridge_ledger WITH (READCOMMITTEDLOCK, READPAST, ROWLOCK) WHERE id = CAST(@p1 AS uniqueidentifier)"
	waiting      = "SELECT count(*) FROM sys.dm_exec_requests WHERE database_id = DB_ID() AND wait_type LIKE 'LCK%'"
)

// A world is a server with a ledger's tables, and a row in an open transaction.
type world struct {
	*tds.Server
	t  *testing.T
	db *sql.DB
	id []byte
	tx *sql.Tx
}

func newWorld(t *testing.T, options *tds.Options, snapshot string) *world {
	t.Helper()
	server, err := tds.Start(options)
	must(t, err)
	t.Cleanup(server.Close)
	w := &world{Server: server, t: t, db: connect(t, server), id: newID()}
	w.run(w.db, "ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT "+snapshot)
	w.run(w.db, "CREATE TABLE bridge_ledger (id uniqueidentifier NOT NULL, PRIMARY KEY (id))")
	w.run(w.db, "CREATE TABLE bridge_identity (one bit PRIMARY KEY, [identity] uniqueidentifier)")
	w.run(w.db, "INSERT INTO bridge_identity ([identity]) VALUES (NEWID())")
	w.run(w.db, "CREATE TABLE orders (id VARCHAR(36))")
	w.tx = w.begin(nil)
	w.insert(w.tx, w.id)
	return w
}

type runner interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func (w *world) run(on runner, statement string, args ...any) {
	w.t.Helper()
	if _, err := on.ExecContext(w.t.Context(), statement, args...); err != nil {
		w.t.Fatalf("%s: %v", statement, err)
	}
}

func (w *world) insert(on runner, id []byte) {
	w.t.Helper()
	must(w.t, w.tryInsert(on, id))
}

func (w *world) tryInsert(on runner, id []byte) error {
	var identity mssql.UniqueIdentifier
	if err := w.db.QueryRowContext(context.Background(), "SELECT [identity] FROM bridge_identity").Scan(&identity); err != nil {
		return err
	}
	stored, _ := identity.Value()
	_, err := on.ExecContext(context.Background(), insertLedger, id, stored)
	return err
}

func (w *world) number(on runner, query string, args ...any) (n int) {
	w.t.Helper()
	must(w.t, on.QueryRowContext(w.t.Context(), query, args...).Scan(&n))
	return n
}

func (w *world) expect(on runner, query string, want int) {
	w.t.Helper()
	if n := w.number(on, query, w.id); n != want {
		w.t.Errorf("%s: %d, must be %d", query, n, want)
	}
}

func (w *world) begin(options *sql.TxOptions) *sql.Tx {
	w.t.Helper()
	tx, err := w.db.BeginTx(context.Background(), options)
	must(w.t, err)
	w.t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// awaitWaiting waits until a session waits for a lock.
func (w *world) awaitWaiting() {
	w.t.Helper()
	servertest.Eventually(w.t, "a session waits", func() bool { return w.number(w.db, waiting) > 0 })
}

func TestAPlainSelectWaitsWithoutSnapshot(t *testing.T) {
	w := newWorld(t, nil, "OFF")
	tx := w.begin(nil)
	w.run(tx, "SET LOCK_TIMEOUT 10")
	expectError(t, 1222, scan(tx, find, w.id))
	w.expect(tx, findPast, 0) // the transaction is unchanged
	result := make(chan int, 1)
	go func() { result <- w.number(w.db, find, w.id) }()
	w.awaitWaiting()
	must(t, w.tx.Commit())
	if n := servertest.Next(t, "the query's answer", result); n != 1 {
		t.Errorf("after the commit it finds %d", n)
	}
}

func TestReadPastIsRefusedAtOtherLevels(t *testing.T) {
	w := newWorld(t, nil, "ON")
	for _, level := range []sql.IsolationLevel{sql.LevelSnapshot, sql.LevelSerializable, sql.LevelReadUncommitted} {
		expectError(t, 650, scan(w.begin(&sql.TxOptions{Isolation: level}), findPast, w.id))
	}
}

func TestARolledBackSavepointKeepsItsLocks(t *testing.T) {
	w := newWorld(t, nil, "ON")
	w.run(w.tx, "SAVE TRANSACTION s")
	w.id = newID()
	w.insert(w.tx, w.id)
	w.run(w.tx, "ROLLBACK TRANSACTION s")
	w.expect(w.tx, find, 0)
	result := make(chan int, 1)
	go func() { result <- w.number(w.db, findLocked, w.id) }()
	w.awaitWaiting()
	must(t, w.tx.Rollback())
	if n := servertest.Next(t, "the query's answer", result); n != 0 {
		t.Errorf("after the rollback it finds %d", n)
	}
}

func TestTheEndOfAResultCanComeLate(t *testing.T) {
	w := newWorld(t, nil, "ON")
	before := w.Attentions()
	w.Inject(tds.LateEnd)
	w.expect(w.tx, find, 1) // scans one row and closes
	if sent := w.Attentions() - before; sent != 1 {
		t.Errorf("%d attentions, must be 1", sent)
	}
	w.Inject(tds.LateEnd)
	rows, err := w.tx.QueryContext(t.Context(), find, w.id)
	must(t, err)
	for rows.Next() {
	}
	must(t, rows.Err())
	must(t, rows.Close())
	if sent := w.Attentions() - before; sent != 1 {
		t.Errorf("%d attentions, must still be 1", sent)
	}
	w.expect(w.tx, find, 1)
}

// The second DELETE waits for the first one's transaction, and deletes the row after its rollback.
func TestASecondDeleterWaits(t *testing.T) {
	w := newWorld(t, nil, "ON")
	var id mssql.UniqueIdentifier
	must(t, id.Scan(w.id))
	text := "DELETE FROM bridge_ledger WHERE id = '" + id.String() + "'"
	must(t, w.tx.Commit())
	first := w.begin(nil)
	w.run(first, text)
	result := make(chan error, 1)
	go func() {
		_, err := w.db.ExecContext(context.Background(), text)
		result <- err
	}()
	w.awaitWaiting()
	must(t, first.Rollback())
	must(t, servertest.Next(t, "the second deletion's end", result))
	w.expect(w.db, find, 0)
}

// The victim is the transaction with the least to undo, not the one that closes the circle.
func TestTheVictimOfADeadlockIsTheCheapest(t *testing.T) {
	w := newWorld(t, nil, "ON")
	dear, cheap := w.tx, w.begin(nil)
	w.run(dear, insert)
	other := newID()
	w.insert(cheap, other)
	result := make(chan error, 1)
	go func() { result <- w.tryInsert(cheap, w.id) }()
	w.awaitWaiting()
	must(t, w.tryInsert(dear, other))
	expectError(t, 1205, servertest.Next(t, "the victim's end", result))
	must(t, dear.Commit())
	if err := cheap.Commit(); err == nil {
		t.Error("the victim has committed")
	}
}

func TestAnUnknownStatementIsAnError(t *testing.T) {
	w := newWorld(t, nil, "ON")
	for _, statement := range []string{"SELECT 2", "DROP TABLE a, b", "sp_who", "MERGE INTO bridge_ledger"} {
		if _, err := w.db.ExecContext(t.Context(), statement); err == nil {
			t.Errorf("%s: no error", statement)
		}
	}
	if _, err := w.db.ExecContext(t.Context(), find, time.Now()); err == nil {
		t.Error("a parameter of an unknown type: no error")
	}
	w.expect(w.tx, find, 1) // the open transaction is unharmed
}

func scan(on runner, query string, args ...any) error {
	var n int
	return on.QueryRowContext(context.Background(), query, args...).Scan(&n)
}

func connect(t *testing.T, server *tds.Server) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlserver", server.URL("master"))
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	return db
}

func expectError(t *testing.T, number int32, err error) {
	t.Helper()
	var e mssql.Error
	if !errors.As(err, &e) || e.Number != number {
		t.Errorf("%v, must be error %d", err, number)
	}
}

func newID() []byte {
	id := uuid.New()
	return id[:]
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
