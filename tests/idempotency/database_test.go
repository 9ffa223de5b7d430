package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// store is a kind of database. Its table of orders has no unique index: an order that is placed
// twice must show, and the order of placing too.
type store struct {
	driver  string
	dialect migrate.Dialect
	dsn     func(t testing.TB) string
	orders  string
	insert  string
	open    func(ctx context.Context, db *sql.DB) (driver.Inbox, error)
}

var stores = map[string]store{
	"PostgreSQL": {"pgx", migrate.PostgreSQL, servertest.PostgresDB,
		`CREATE TABLE orders (n bigserial PRIMARY KEY, id text)`, `INSERT INTO orders (id) VALUES ($1)`,
		func(ctx context.Context, db *sql.DB) (driver.Inbox, error) { return postgres.OpenInbox(ctx, db) }},
	"MariaDB": {"mysql", migrate.MySQL, servertest.MariaDBDatabase,
		`CREATE TABLE orders (n BIGINT AUTO_INCREMENT PRIMARY KEY, id TEXT)`, `INSERT INTO orders (id) VALUES (?)`,
		func(ctx context.Context, db *sql.DB) (driver.Inbox, error) { return mysql.OpenInbox(ctx, db) }},
	"SQLite": {"sqlite", migrate.SQLite, func(t testing.TB) string {
		return "file:" + filepath.Join(t.TempDir(), "receiver.db") + "?_pragma=journal_mode(wal)&_pragma=busy_timeout(120000)&_pragma=synchronous(off)"
	},
		`CREATE TABLE orders (n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT)`, `INSERT INTO orders (id) VALUES (?)`,
		func(ctx context.Context, db *sql.DB) (driver.Inbox, error) { return sqlite.OpenInbox(ctx, db) }},
}

// database is a database with an inbox and a table of orders.
type database struct {
	store
	*sql.DB
	inbox     driver.Inbox
	name, dsn string // of the store, and of the database in it
	pools     []*pgxpool.Pool
}

// Close also closes the database's pools.
func (db *database) Close() error {
	for _, pool := range db.pools {
		pool.Close()
	}
	return db.DB.Close()
}

// open opens a database of a store.
func open(ctx context.Context, name, dsn string) (*database, error) {
	s := stores[name]
	db, err := sql.Open(s.driver, dsn)
	if err != nil {
		return nil, err
	}
	inbox, err := s.open(ctx, db)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &database{store: s, DB: db, inbox: inbox, name: name, dsn: dsn}, nil
}

// newDatabase creates a database of a store.
func newDatabase(t *testing.T, name string) *database {
	t.Helper()
	s := stores[name]
	dsn := s.dsn(t)
	db, err := sql.Open(s.driver, dsn)
	must(t, err)
	defer db.Close()
	must(t, migrate.Inbox(t.Context(), db, s.dialect))
	_, err = db.ExecContext(t.Context(), s.orders)
	must(t, err)
	opened, err := open(t.Context(), name, dsn)
	must(t, err)
	t.Cleanup(func() { must(t, opened.Close()) })
	return opened
}

// through opens the database, in PostgreSQL, through a valve.
func (db *database) through(t *testing.T) (*servertest.Valve, *database) {
	t.Helper()
	valve, dsn := servertest.Through(t, db.dsn)
	through, err := open(t.Context(), db.name, dsn)
	must(t, err)
	t.Cleanup(func() { _ = through.Close() })
	return valve, through
}

// databasesTakeTurns runs a test on each database, with that database's share of the steps.
func databasesTakeTurns(t *testing.T, test func(t *testing.T, db *database, first, stride int)) {
	names := []string{"PostgreSQL", "MariaDB", "SQLite"}
	for turn, name := range names {
		t.Run(name, func(t *testing.T) {
			first, stride := steps(turn, len(names))
			test(t, newDatabase(t, name), first, stride)
		})
	}
}

// placeOrder stores an order in tx.
func (db *database) placeOrder(ctx context.Context, tx *sql.Tx, id string) error {
	return db.place(ctx, bridge.SQL(tx), id)
}

// place stores an order in a transaction of any library.
func (db *database) place(ctx context.Context, tx bridge.Tx, id string) error {
	_, err := tx.Exec(ctx, db.insert, id)
	return err
}

// pool opens the database through pgx, until Close.
func (db *database) pool(ctx context.Context) (*pgxpool.Pool, error) {
	pool, err := pgxpool.New(ctx, db.dsn)
	if err == nil {
		db.pools = append(db.pools, pool)
	}
	return pool, err
}

// placed returns the committed orders in the order of their placing: by the part of the ID before
// the colon, the parts behind it.
func (db *database) placed(t *testing.T) map[string][]string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT id FROM orders ORDER BY n`)
	must(t, err)
	defer rows.Close()
	all := make(map[string][]string)
	for rows.Next() {
		var id string
		must(t, rows.Scan(&id))
		entity, key, _ := strings.Cut(id, ":")
		all[entity] = append(all[entity], key)
	}
	must(t, rows.Err())
	return all
}

// wantOrders checks the number of committed orders, each of which must be there once.
func (db *database) wantOrders(t *testing.T, want int) {
	t.Helper()
	var all, distinct, keys int
	must(t, db.QueryRowContext(t.Context(), `SELECT count(*), count(DISTINCT id), (SELECT count(*) FROM bridge_inbox) FROM orders`).
		Scan(&all, &distinct, &keys))
	if all != want || distinct != want || keys != want {
		t.Errorf("%d orders (%d different) and %d keys are committed, want %d of each", all, distinct, keys, want)
	}
}
