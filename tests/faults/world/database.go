package world

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/faults/parts"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// A DatabaseServer is a database server that a plan may kill.
type DatabaseServer interface {
	Kill()
	Restart(ctx context.Context) error
}

// DatabaseKinds lists the kinds that StartDatabase accepts.
var DatabaseKinds = []string{"postgres", "mysql"}

// StartDatabase starts a database server that waits for the disk, and returns the URLs of two
// databases in it. The kind "mysql" is a MariaDB, or a MySQL where only MySQL is installed.
func StartDatabase(t testing.TB, kind string, diary *Diary) (server DatabaseServer, shop, post string) {
	t.Helper()
	switch kind {
	case "postgres":
		s := servertest.StartPostgres(t, &servers.PostgresOptions{Log: diary.Page("PostgreSQL"), Config: []string{
			"recovery_init_sync_method = syncfs", // a faster restart, no less safe
			"deadlock_timeout = 200ms",
		}})
		CreateDatabase(t, s.URL(), "shop", "post")
		return s, s.DatabaseURL("shop"), s.DatabaseURL("post")
	case "mysql":
		s := servertest.StartMariaDB(t, &servers.MariaDBOptions{Log: diary.Page("MariaDB")})
		address := "mysql://root@" + s.Addr() + "/"
		CreateDatabase(t, address, "shop", "post")
		return s, address + "shop", address + "post"
	}
	t.Fatalf("no database is known as %q, only %q", kind, DatabaseKinds)
	panic("unreachable")
}

// CreateDatabase creates databases on the server of a URL.
func CreateDatabase(t testing.TB, address string, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := open(t, address).exec(t.Context(), "CREATE DATABASE "+name); err != nil {
			t.Fatalf("create database: %v", err)
		}
	}
}

// A database is a pool for one database, with the differences between the kinds.
type database struct {
	*sql.DB
	parts.Database
	kindSQL
}

// kindSQL are a kind's statements and types. The sessions of a process are found by its role.
type kindSQL struct {
	place    string   // the type of a column that numbers the rows in the order of their INSERTs
	stamp    string   // the type of a column that holds the time of its row's INSERT
	role     []string // statements that create a role, %s, if the server needs one
	as       func(role parts.Role, address string) string
	sessions string // the IDs of a role's sessions in this database
	kill     string // ends a session by its ID

	// lock keeps other clients from changing a table, %s; unlock ends that.
	lock   []string
	unlock string
}

var kindSQLOf = map[migrate.Dialect]kindSQL{
	migrate.PostgreSQL: {
		place:    `bigserial PRIMARY KEY`,
		stamp:    `timestamptz NOT NULL DEFAULT clock_timestamp()`,
		as:       func(role parts.Role, address string) string { return address + "&application_name=" + string(role) },
		sessions: `SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = ?`,
		kill:     `SELECT pg_terminate_backend(%d)`,
		lock:     []string{`BEGIN`, `LOCK TABLE %s IN SHARE MODE`},
		unlock:   `ROLLBACK`,
	},
	migrate.MySQL: {
		place:    `bigint AUTO_INCREMENT PRIMARY KEY`,
		stamp:    `datetime(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))`,
		role:     []string{`CREATE USER IF NOT EXISTS %s`, `GRANT ALL ON *.* TO %s`},
		as:       asUser,
		sessions: `SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND user = ?`,
		kill:     `KILL CONNECTION %d`,
		lock:     []string{`LOCK TABLES %s READ`},
		unlock:   `UNLOCK TABLES`,
	},
}

func asUser(role parts.Role, address string) string {
	parsed, err := url.Parse(address)
	if err != nil {
		panic(err) // open has parsed the address before
	}
	parsed.User = url.User(string(role))
	return parsed.String()
}

func open(t testing.TB, address string) database {
	t.Helper()
	db, kind, err := parts.OpenDatabase(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return database{db, kind, kindSQLOf[kind.Dialect]}
}

func (d database) exec(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := d.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("run %q: %w", statement, err)
		}
	}
	return nil
}

func (d database) makeRoles(ctx context.Context, roles ...parts.Role) error {
	for _, role := range roles {
		for _, statement := range d.role {
			if err := d.exec(ctx, fmt.Sprintf(statement, role)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d database) sessionsOf(ctx context.Context, role parts.Role) (ids []int64, err error) {
	err = d.read(ctx, &ids, d.sessions, string(role))
	return ids, err
}

// read reads all rows of a query into a slice.
func (d database) read(ctx context.Context, into any, query string, args ...any) error {
	return sqlx.NewDb(d.DB, "").SelectContext(ctx, into, d.Text(query), args...)
}

// killSessions ends each session of the roles with even odds.
func (d database) killSessions(ctx context.Context, roles ...parts.Role) error {
	const unknownThread = 1094 // the session has ended by itself
	for _, role := range roles {
		ids, err := d.sessionsOf(ctx, role)
		if err != nil {
			return fmt.Errorf("kill sessions: %w", err)
		}
		for _, id := range ids {
			if rand.IntN(2) == 0 {
				continue
			}
			err := d.exec(ctx, fmt.Sprintf(d.kill, id))
			if answer := new(mysql.MySQLError); err != nil && !(errors.As(err, &answer) && answer.Number == unknownThread) {
				return fmt.Errorf("kill sessions: %w", err)
			}
		}
	}
	return nil
}

// lockTable keeps all others from writing to a table for the time t.
func (d database) lockTable(ctx context.Context, table string, t time.Duration) error {
	conn, err := d.Conn(ctx)
	if err != nil {
		return fmt.Errorf("lock %s: %w", table, err)
	}
	defer conn.Close()
	for _, statement := range d.lock {
		if _, err := conn.ExecContext(ctx, strings.ReplaceAll(statement, "%s", table)); err != nil {
			return fmt.Errorf("lock %s: %w", table, err)
		}
	}
	Rest(ctx, t)
	if _, err := conn.ExecContext(ctx, d.unlock); err != nil {
		return fmt.Errorf("unlock %s: %w", table, err)
	}
	return nil
}

// lockRows locks rows of the ledger while it calls during, as an operator's open DELETE does, and
// returns their IDs. It skips rows that others have locked.
func (d database) lockRows(ctx context.Context, during func()) (map[uuid.UUID]bool, error) {
	tx, err := d.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, fmt.Errorf("lock rows: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	rows, err := tx.QueryContext(ctx, `SELECT id FROM bridge_ledger LIMIT 5 FOR UPDATE SKIP LOCKED`)
	if err != nil {
		return nil, fmt.Errorf("lock rows: %w", err)
	}
	locked := make(map[uuid.UUID]bool)
	var scanErr error
	for scanErr == nil && rows.Next() { // read to the end, where MySQL reports its errors
		var id uuid.UUID
		scanErr = rows.Scan(&id)
		locked[id] = true
	}
	if err := errors.Join(scanErr, rows.Err(), rows.Close()); err != nil {
		return nil, fmt.Errorf("lock rows: %w", err)
	}
	during()
	return locked, nil
}
