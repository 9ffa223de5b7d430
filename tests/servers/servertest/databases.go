package servertest

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// PostgresDB creates a database for this test and returns its URL. The database is dropped when the
// test ends, even if clients are still connected.
func PostgresDB(t testing.TB) string {
	t.Helper()
	root := os.Getenv(postgresVariable)
	if root == "" {
		root = Postgres(t).URL()
	}
	address, err := url.Parse(root)
	if err != nil {
		t.Fatalf("parse %s: %v", postgresVariable, err)
	}
	name := uniqueName(t)
	if err := postgresExec(root, "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := postgresExec(root, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	return address.JoinPath("..", name).String()
}

// PostgresRole creates a role with these rights in a PostgreSQL database, given by an administrator's
// URL, and returns its name and the URL for its login. The role is dropped when the test ends.
func PostgresRole(t testing.TB, databaseURL string, rights ...string) (role, roleURL string) {
	t.Helper()
	address, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatalf("parse database: %v", err)
	}
	role = "role_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	create := "CREATE ROLE " + role + " LOGIN"
	for _, right := range rights {
		create += "; GRANT " + right + " TO " + role
	}
	if err := postgresExec(databaseURL, create); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := postgresExec(databaseURL, "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	address.User = url.User(role)
	return role, address.String()
}

// PgBouncer starts a PgBouncer in front of the shared PostgreSQL, which pools by transaction, and
// returns the pooled address of a database from PostgresDB.
func PgBouncer(t testing.TB, databaseURL string) string {
	t.Helper()
	if os.Getenv(postgresVariable) != "" {
		t.Skipf("needs a private PostgreSQL, and %s is set", postgresVariable)
	}
	address, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatalf("parse database: %v", err)
	}
	address.Host = StartPgBouncer(t, Postgres(t)).Addr()
	return address.String()
}

// MariaDBDatabase creates a database for this test and returns its DSN. The database is dropped
// when the test ends.
func MariaDBDatabase(t testing.TB) string {
	t.Helper()
	root := os.Getenv(mysqlVariable)
	if root == "" {
		root = MariaDB(t).DSN()
	}
	config, err := mysql.ParseDSN(root)
	if err != nil {
		t.Fatalf("parse %s: %v", mysqlVariable, err)
	}
	config.DBName = uniqueName(t)
	if err := mysqlExec(root, "CREATE DATABASE "+config.DBName); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mysqlExec(root, "DROP DATABASE "+config.DBName); err != nil {
			t.Error(err)
		}
	})
	return config.FormatDSN()
}

// postgresExec runs one statement on its own connection. It sets its own limit, since a test's
// context has ended in the cleanup.
func postgresExec(address, statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("run %q: %w", statement, err)
	}
	return nil
}

func mysqlExec(dsn, statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
	defer cancel()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return fmt.Errorf("open MariaDB: %w", err)
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, statement); err != nil {
		return fmt.Errorf("run %q: %w", statement, err)
	}
	return nil
}
