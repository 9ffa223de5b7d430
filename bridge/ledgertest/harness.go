package ledgertest

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
)

// A Harness connects the suite to one kind of database.
type Harness struct {
	// Create makes an empty database that lasts until t ends. connect opens a new, independent pool
	// on it; the suite closes the pool.
	Create func(t testing.TB) (connect func() (*sql.DB, error))

	// Migrate and Open are the package's functions for the ledger, and
	// MigrateInbox and OpenInbox those for the inbox.
	Migrate      func(ctx context.Context, db *sql.DB) error
	Open         func(ctx context.Context, db *sql.DB) (driver.Ledger, error)
	MigrateInbox func(ctx context.Context, db *sql.DB) error
	OpenInbox    func(ctx context.Context, db *sql.DB) (driver.Inbox, error)

	// Begun are statements that leave the state of a Migrate that died before its first version.
	// All other migrators then begin with it at once. Nil: another test covers that.
	Begun []string

	// In returns a statement with the schema of the bridge's tables before their names; Copy and
	// the other statements below contain it already. Nil: the tables are found without it.
	In func(statement string) string

	// Watch opens the ledger as Open does, and also returns its watcher. Nil: the database does not
	// show the holders of a row.
	Watch func(ctx context.Context, db *sql.DB) (driver.Ledger, inspect.Watcher, error)

	// Further: another suite runs on the same kind of database, and this one uses other settings.
	// It then leaves out the checks of identity and version, which need a database of their own and
	// do not depend on the settings.
	Further bool

	// Driver: another suite runs on the same server, and this one uses another driver, a pooler, or
	// a schema of its own. It then runs only tests that depend on these: values to and from the
	// server, its errors, and the end of a wait. They execute every statement.
	Driver bool

	// Tx makes a bridge.Tx from a transaction of the suite. Nil: bridge.SQL does.
	Tx func(tx *sql.Tx) bridge.Tx

	// Insert makes this a suite for a ledger on an own table: it inserts rows with these IDs, as
	// the application would; Create makes the table. Nil: Record inserts.
	Insert func(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) error

	// Table is that table's name as written in a statement, so that the suite can empty it. It
	// is needed if there is a Gather.
	Table string

	// Gather is a statement that gathers the statistics of a table, %s, from which the
	// server makes its plans; empty if there is none.
	Gather string

	// OnePlan: the server reads a table in the same way at any size and under any statistics, so the
	// tests by key have tables of one size only.
	OnePlan bool

	// Scanned returns how many rows the one connection of db has read so far without their keys, by
	// scans of tables and indexes. A few more or less do not matter. Nil: the database does not
	// show it, or a pooler uses another connection for each statement.
	Scanned func(ctx context.Context, db *sql.DB) (int, error)

	// Savepoint and RollbackTo make a savepoint and return to it.
	Savepoint, RollbackTo string

	// Literal returns an ID as written in a statement.
	Literal func(id uuid.UUID) string

	// Older is a statement that makes all rows of bridge_ledger two hours older: it moves
	// recorded_at and stage_at back. A WHERE may follow.
	Older string

	// Copy is a statement that gives the database another identity. It is required unless
	// Further or Driver is set.
	Copy string

	// Uncarry are statements that remove the additions of version 3 from the ledger's tables. They
	// are required unless Further or Driver is set.
	Uncarry []string

	// RefuseDelete are statements after which no row of bridge_ledger can be deleted.
	RefuseDelete []string

	// Conflict reports whether an error of Cancel says that a claim has changed the row since the
	// transaction began. The transaction must be run again. Nil: Cancel returns no such error at
	// the default isolation level.
	Conflict func(err error) bool

	// Overlap: two concurrent TakePendings may take the same message.
	Overlap bool

	// OneWriter: a transaction that has written keeps all others from writing and from settling
	// until it ends.
	OneWriter bool

	// Waiting is a query for the number of the database's sessions that wait for a lock; empty if
	// the database does not show it.
	Waiting string

	// SessionID is a query for the name of the connection's session; empty if it has none, or if a
	// pooler may change it between two statements.
	SessionID string

	// Program is the connections' own name, as Holders returns it; empty if they cannot have one.
	Program string

	// Clock is a query for the database's clock, in milliseconds since 1970; it is not
	// needed without a Watch.
	Clock string

	// Kill ends the connection of tx on the server, through admin. Nil: that is impossible.
	Kill func(ctx context.Context, admin *sql.DB, tx *sql.Tx) error

	// KillSession ends the session with that name, from SessionID.
	KillSession func(ctx context.Context, admin *sql.DB, session string) error
}

// in returns tx as an argument for the ledger and the inbox.
func (h Harness) in(tx *sql.Tx) bridge.Tx {
	if h.Tx != nil {
		return h.Tx(tx)
	}
	return bridge.SQL(tx)
}

// named returns one of the suite's own statements with the schema in it.
func (h Harness) named(statement string) string {
	if h.In != nil {
		return h.In(statement)
	}
	return statement
}

// wait bounds a Settle in the suite that should end by a signal, and prompt is the time within
// which it must then end. They are far apart, so that a slow machine fails no test and a wait until
// the time-out does.
const (
	wait   = 2 * time.Minute
	prompt = wait / 4
)

// short is a bound that a Settle should reach.
const short = 200 * time.Millisecond

// A database is a new database with the ledger in it, and two pools: the sender's and the
// verifier's.
type database struct {
	Harness
	connect func() *sql.DB
	sender  driver.Ledger
	ledger  driver.Ledger
}

func (h Harness) newDatabase(t *testing.T) *database {
	t.Helper()
	d := &database{Harness: h, connect: h.create(t)}
	d.sender = d.open(t)
	d.ledger = d.open(t)
	return d
}

// create makes an empty database, and returns a function that connects to it.
func (h Harness) create(t *testing.T) (connect func() *sql.DB) {
	t.Helper()
	open := h.Create(t)
	return func() *sql.DB {
		t.Helper()
		db, err := open()
		check(t, err, "connect")
		t.Cleanup(func() { check(t, db.Close(), "close pool") })
		return db
	}
}

// open migrates, and opens the ledger on a new pool.
func (d *database) open(t *testing.T) driver.Ledger {
	t.Helper()
	db := d.connect()
	check(t, d.Migrate(t.Context(), db), "migrate")
	ledger, err := d.Open(t.Context(), db)
	check(t, err, "open")
	return ledger
}

// begin begins one of the sender's transactions and records ids in it. It is rolled back at the end
// of t, unless it has ended before.
func (d *database) begin(t *testing.T, ids ...uuid.UUID) *sql.Tx {
	t.Helper()
	tx := begin(t, d.sender.DB())
	check(t, d.record(t, d.in(tx), ids), "record")
	return tx
}

// record records ids in tx. On an own table it inserts their rows first.
func (d *database) record(t *testing.T, tx bridge.Tx, ids []uuid.UUID) error {
	t.Helper()
	if d.Insert != nil {
		if err := d.Insert(t.Context(), tx, ids); err != nil {
			return err
		}
	}
	return d.sender.Record(t.Context(), tx, driver.Plain(ids...))
}

// commit records ids in a transaction, and commits it.
func (d *database) commit(t *testing.T, ids ...uuid.UUID) {
	t.Helper()
	check(t, d.begin(t, ids...).Commit(), "commit")
}

// rollBack records ids in a transaction, and rolls it back.
func (d *database) rollBack(t *testing.T, ids ...uuid.UUID) {
	t.Helper()
	check(t, d.begin(t, ids...).Rollback(), "roll back")
}

// waiting returns when n settles wait. If the database does not show that, it returns when they
// have their connections.
func (d *database) waiting(t *testing.T, n int) {
	t.Helper()
	if d.Waiting == "" {
		eventually(t, "the settles have their connections", func() bool { return d.ledger.DB().Stats().InUse >= n })
		return
	}
	awaitWaiting(t, d.Harness, d.sender.DB(), n)
}

func awaitWaiting(t *testing.T, h Harness, db *sql.DB, n int) {
	t.Helper()
	if h.Waiting == "" {
		return
	}
	eventually(t, "a session waits for a lock", func() bool {
		var found int
		check(t, db.QueryRowContext(t.Context(), h.Waiting).Scan(&found), "count the waiting sessions")
		return found >= n
	})
}

// expectSettled fails unless the outcome of id is want, at once.
func (d *database) expectSettled(t *testing.T, id uuid.UUID, want driver.Outcome) {
	t.Helper()
	outcome, _, err := d.ledger.Settle(t.Context(), id, wait)
	check(t, err, "settle")
	if outcome != want {
		t.Fatalf("settle returned %q, must return %q", outcome, want)
	}
}

// expectCommitted fails unless the non-waiting lookup of asked finds exactly want.
func (d *database) expectCommitted(t *testing.T, asked []uuid.UUID, want ...uuid.UUID) {
	t.Helper()
	found, _, err := d.ledger.Committed(bounded(t), asked)
	check(t, err, "look up")
	if len(found) != len(want) {
		t.Fatalf("the lookup found %d IDs, must find %d", len(found), len(want))
	}
	for _, id := range want {
		if !contains(found, id) {
			t.Fatalf("the lookup did not find %s", id)
		}
	}
}

// expectIdle fails unless all connections return to the verifier's pool.
func (d *database) expectIdle(t *testing.T) {
	t.Helper()
	eventually(t, "no connection is in use", func() bool { return d.ledger.DB().Stats().InUse == 0 })
}
