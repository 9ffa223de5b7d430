package ledger_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestPostgresOwnTable(t *testing.T) {
	t.Parallel()
	ledgertest.Run(t, postgresOwnTable(postgresHarness("pgx", servertest.PostgresDB)))
}

func TestPostgresOwnTableBehindPgBouncer(t *testing.T) {
	t.Parallel()
	ledgertest.Run(t, postgresOwnTable(pooled(ofDriver(postgresHarness("pgx", func(t testing.TB) string {
		return withParameter(t, servertest.PgBouncer(t, servertest.PostgresDB(t)), "default_query_exec_mode", "exec")
	})))))
}

func TestPostgresOwnTableByPq(t *testing.T) {
	t.Parallel()
	ledgertest.Run(t, postgresOwnTable(ofDriver(postgresHarness("postgres", byPq))))
}

func testMariaDBOwnTableSuite(t *testing.T) {
	ledgertest.Run(t, mariaDBOwnTable("BINARY(16)"))
}

func testMariaDBUUIDColumnSuite(t *testing.T) {
	_, db := mariaDB(t)
	if isMySQL(t, db) {
		t.Skip("MySQL has no such type")
	}
	h := mariaDBOwnTable("UUID")
	h.Further = true
	h.Watch = nil // the watcher does not depend on the column's type
	ledgertest.Run(t, h)
}

// The names work only if they are quoted.
func postgresOwnTable(h ledgertest.Harness) ledgertest.Harness {
	h.Create = withTable(h.Create, `CREATE SCHEMA "Shop"`,
		`CREATE TABLE "Shop"."or""der's; --" (n bigserial PRIMARY KEY, "message ""ID""" uuid UNIQUE)`)
	h.Table = `"Shop"."or""der's; --"`
	own := bridge.OwnTable{Table: `Shop.or"der's; --`, Column: `message "ID"`}
	h.Open = func(ctx context.Context, db *sql.DB) (driver.Ledger, error) {
		return postgres.OpenOwnTable(ctx, db, own)
	}
	h.Watch = func(ctx context.Context, db *sql.DB) (driver.Ledger, inspect.Watcher, error) {
		ledger, err := postgres.OpenOwnTable(ctx, db, own)
		if err != nil {
			return nil, nil, err
		}
		return ledger, postgres.InspectOwnTable(ledger), nil
	}
	h.Insert = func(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) error {
		_, err := tx.Exec(ctx, `INSERT INTO "Shop"."or""der's; --" ("message ""ID""") SELECT unnest($1::text::uuid[])`,
			"{"+strings.Join(texts(ids), ",")+"}")
		return err
	}
	return h
}

func mariaDBOwnTable(columnType string) ledgertest.Harness {
	h := mariaDBHarness()
	h.Create = withTable(h.Create,
		"CREATE TABLE `or``der's; --` (n BIGINT PRIMARY KEY AUTO_INCREMENT, `message ``ID``` "+columnType+" UNIQUE) ENGINE = InnoDB")
	h.Table = "`or``der's; --`"
	own := bridge.OwnTable{Table: "or`der's; --", Column: "message `ID`"}
	h.Open = func(ctx context.Context, db *sql.DB) (driver.Ledger, error) { return mysql.OpenOwnTable(ctx, db, own) }
	h.Watch = func(ctx context.Context, db *sql.DB) (driver.Ledger, inspect.Watcher, error) {
		ledger, err := mysql.OpenOwnTable(ctx, db, own)
		if err != nil {
			return nil, nil, err
		}
		return ledger, mysql.InspectOwnTable(ledger), nil
	}
	h.Insert = func(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) error {
		values := make([]string, len(ids))
		for i, id := range ids {
			values[i] = "(UNHEX('" + strings.ReplaceAll(id.String(), "-", "") + "'))"
		}
		_, err := tx.Exec(ctx, "INSERT INTO `or``der's; --` (`message ``ID```) VALUES "+strings.Join(values, ","))
		return err
	}
	return h
}

// withTable returns create with statements that run in the new database.
func withTable(create func(testing.TB) func() (*sql.DB, error), statements ...string) func(testing.TB) func() (*sql.DB, error) {
	return func(t testing.TB) func() (*sql.DB, error) {
		t.Helper()
		connect := create(t)
		db, err := connect()
		if err != nil {
			t.Fatalf("connect: %v", err)
		}
		defer db.Close()
		for _, statement := range statements {
			if _, err := db.ExecContext(t.Context(), statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		return connect
	}
}

func texts(ids []uuid.UUID) []string {
	all := make([]string, len(ids))
	for i, id := range ids {
		all[i] = id.String()
	}
	return all
}
