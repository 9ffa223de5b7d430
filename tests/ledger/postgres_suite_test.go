package ledger_test

import (
	"context"
	"database/sql"
	"io"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/pgxbridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestPostgresByPgx(t *testing.T) {
	t.Parallel()
	runPostgres(t, postgresHarness("pgx", servertest.PostgresDB))
}

func TestPostgresByPq(t *testing.T) {
	t.Parallel()
	runPostgres(t, ofDriver(postgresHarness("postgres", byPq)))
}

// byPq creates a database and returns its address for lib/pq.
func byPq(t testing.TB) string {
	t.Helper()
	return withParameter(t, servertest.PostgresDB(t), "sslmode", "disable")
}

// With the native ledger, statements in the caller's transaction bypass database/sql, and the
// others use a pgxpool.Pool.
func TestPostgresByPgxPool(t *testing.T) {
	t.Parallel()
	var opened closers
	h := ofDriver(postgresHarness("pgx", servertest.PostgresDB))
	h.Create = func(t testing.TB) func() (*sql.DB, error) {
		at := withParameter(t, servertest.PostgresDB(t), "application_name", program)
		at = withParameter(t, at, "pool_max_conns", "50") // pgx's default is 4, and the suite settles more IDs at once
		return func() (*sql.DB, error) {
			pool, err := pgxpool.New(context.Background(), at)
			if err != nil {
				return nil, err
			}
			db := stdlib.OpenDBFromPool(pool)
			pools.Store(db, pool)
			t.Cleanup(pool.Close)
			return db, nil
		}
	}
	h.Open = func(ctx context.Context, db *sql.DB) (driver.Ledger, error) {
		ledger, err := pgxbridge.Open(ctx, poolOf(db))
		if err == nil {
			opened.Add(ledger.DB())
		}
		return ledger, err
	}
	h.Watch = func(ctx context.Context, db *sql.DB) (driver.Ledger, inspect.Watcher, error) {
		ledger, err := pgxbridge.Open(ctx, poolOf(db))
		if err != nil {
			return nil, nil, err
		}
		opened.Add(ledger.DB())
		return ledger, postgres.Inspect(ledger), nil
	}
	h.OpenInbox = func(ctx context.Context, db *sql.DB) (driver.Inbox, error) {
		inbox, err := pgxbridge.OpenInbox(ctx, poolOf(db))
		if err == nil {
			opened.Add(inbox.DB())
		}
		return inbox, err
	}
	h.Tx = func(tx *sql.Tx) bridge.Tx { return pgxbridge.Tx(nativeTx{tx: tx}) }
	t.Cleanup(opened.Close)
	runPostgres(t, h)
}

// closers are closed together.
type closers struct {
	mu  sync.Mutex
	all []io.Closer
}

func (c *closers) Add(one io.Closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, one)
}

func (c *closers) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.all {
		_ = one.Close()
	}
}

// pools maps each database to the pool that it uses.
var pools sync.Map

func poolOf(db *sql.DB) *pgxpool.Pool {
	pool, ok := pools.Load(db)
	if !ok {
		panic("a database without a pool")
	}
	return pool.(*pgxpool.Pool)
}

// nativeTx is pgx's side of a transaction that the suite began through database/sql.
type nativeTx struct {
	pgx.Tx
	tx *sql.Tx
}

// conn returns the transaction's connection. pgx passes it to a query rewriter.
func (n nativeTx) conn(ctx context.Context) (*pgx.Conn, error) {
	var seen connection
	_, err := n.tx.ExecContext(ctx, "SELECT 1", &seen)
	return seen.conn, err
}

func (n nativeTx) Exec(ctx context.Context, statement string, args ...any) (pgconn.CommandTag, error) {
	conn, err := n.conn(ctx)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	return conn.Exec(ctx, statement, args...)
}

func (n nativeTx) Query(ctx context.Context, statement string, args ...any) (pgx.Rows, error) {
	conn, err := n.conn(ctx)
	if err != nil {
		return nil, err
	}
	return conn.Query(ctx, statement, args...)
}

type connection struct{ conn *pgx.Conn }

func (c *connection) RewriteQuery(_ context.Context, conn *pgx.Conn, statement string, _ []any) (string, []any, error) {
	c.conn = conn
	return statement, nil, nil
}

func TestPostgresBehindPgBouncerByPgx(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			runPostgres(t, pooled(ofDriver(postgresHarness("pgx", func(t testing.TB) string {
				return withParameter(t, servertest.PgBouncer(t, inOldFormats(t, servertest.PostgresDB(t))), "default_query_exec_mode", mode)
			}))))
		})
	}
}

// inOldFormats gives the logins of a database the formats in which pgx can read neither bytes nor
// times as text, as it does in both modes.
func inOldFormats(t testing.TB, address string) string {
	t.Helper()
	db, err := sql.Open("pgx", address)
	must(t, err)
	defer db.Close()
	parsed, err := url.Parse(address)
	must(t, err)
	for _, setting := range []string{"bytea_output = 'escape'", "DateStyle = 'German'"} {
		_, err := db.ExecContext(t.Context(), "ALTER DATABASE "+strings.TrimPrefix(parsed.Path, "/")+" SET "+setting)
		must(t, err)
	}
	return address
}

func runPostgres(t *testing.T, h ledgertest.Harness) {
	ledgertest.Run(t, h)
	t.Run("inbox", func(t *testing.T) { ledgertest.RunInbox(t, h) })
}

// program is the application name of the suites' connections.
const program = "ledgertest"

func postgresHarness(by string, address func(testing.TB) string) ledgertest.Harness {
	return ledgertest.Harness{
		Create: func(t testing.TB) func() (*sql.DB, error) {
			at := withParameter(t, address(t), "application_name", program)
			return func() (*sql.DB, error) { return sql.Open(by, at) }
		},
		Migrate: func(ctx context.Context, db *sql.DB) error { return migrate.Ledger(ctx, db, migrate.PostgreSQL) },
		Open: func(ctx context.Context, db *sql.DB) (driver.Ledger, error) {
			return postgres.Open(ctx, db)
		},
		Watch: func(ctx context.Context, db *sql.DB) (driver.Ledger, inspect.Watcher, error) {
			ledger, err := postgres.Open(ctx, db)
			if err != nil {
				return nil, nil, err
			}
			return ledger, postgres.Inspect(ledger), nil
		},
		MigrateInbox: func(ctx context.Context, db *sql.DB) error { return migrate.Inbox(ctx, db, migrate.PostgreSQL) },
		OpenInbox: func(ctx context.Context, db *sql.DB) (driver.Inbox, error) {
			return postgres.OpenInbox(ctx, db)
		},
		Begun: []string{`CREATE TABLE bridge_ledger_version (id integer PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY, version_id bigint NOT NULL,
			is_applied boolean NOT NULL, tstamp timestamp NOT NULL DEFAULT now())`, `INSERT INTO bridge_ledger_version (version_id, is_applied) VALUES (0, true)`},
		Savepoint:  "SAVEPOINT s",
		RollbackTo: "ROLLBACK TO SAVEPOINT s",
		Waiting:    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
		Literal:    func(id uuid.UUID) string { return "'" + id.String() + "'" },
		Older:      "UPDATE bridge_ledger SET recorded_at = recorded_at - interval '2 hours', stage_at = stage_at - interval '2 hours'",
		Copy:       "UPDATE bridge_identity SET identity = gen_random_uuid()",
		Uncarry:    []string{"ALTER TABLE bridge_ledger DROP COLUMN message, DROP COLUMN stage_at"},
		RefuseDelete: []string{
			"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$",
			"CREATE TRIGGER refuse BEFORE DELETE ON bridge_ledger FOR EACH ROW EXECUTE FUNCTION refuse()",
		},
		Gather:    "VACUUM (ANALYZE) %s",
		Scanned:   scannedByPostgres,
		SessionID: "SELECT pg_backend_pid()::text",
		Program:   program,
		Clock:     "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint",
		KillSession: func(ctx context.Context, admin *sql.DB, session string) error {
			_, err := admin.ExecContext(ctx, "SELECT pg_terminate_backend($1::text::int)", session)
			return err
		},
		Kill: func(ctx context.Context, admin *sql.DB, tx *sql.Tx) error {
			var pid int
			if err := tx.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
				return err
			}
			_, err := admin.ExecContext(ctx, "SELECT pg_terminate_backend($1)", pid)
			return err
		},
	}
}

func scannedByPostgres(ctx context.Context, db *sql.DB) (n int, err error) {
	if _, err := db.ExecContext(ctx, "SELECT pg_stat_force_next_flush()"); err != nil {
		return 0, err
	}
	err = db.QueryRowContext(ctx, "SELECT sum(seq_tup_read) FROM pg_stat_user_tables").Scan(&n)
	return n, err
}

// ofDriver restricts h to the tests that depend on the driver. TestPostgresByPgx or its like runs
// the whole suite.
func ofDriver(h ledgertest.Harness) ledgertest.Harness {
	h.Driver = true
	return h
}

// pooled returns h for a pooler, which assigns sessions to statements as it likes.
func pooled(h ledgertest.Harness) ledgertest.Harness {
	h.SessionID, h.Scanned = "", nil
	return h
}

func withParameter(t testing.TB, address, name, value string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatalf("parse address: %v", err)
	}
	query := parsed.Query()
	query.Set(name, value)
	parsed.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // PostgreSQL does not decode a plus
	return parsed.String()
}
