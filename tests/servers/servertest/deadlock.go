package servertest

import (
	"context"
	"database/sql"
	"strings"
	"testing"
)

// NewDeadlock returns a function that causes a deadlock on MySQL or MariaDB between the caller's
// transaction, in which exec executes a statement, and another transaction. The other transaction
// is heavier, so the server ends the caller's. The function returns the server's error, number
// 1213. NewDeadlock creates tables: call it before the transaction begins.
func NewDeadlock(t testing.TB, db *sql.DB) func(exec func(statement string) error) error {
	t.Helper()
	for _, statement := range []string{
		`CREATE TABLE IF NOT EXISTS deadlock_locks (id INT PRIMARY KEY, n INT)`,
		`INSERT IGNORE INTO deadlock_locks VALUES (1, 0), (2, 0)`,
		`CREATE TABLE IF NOT EXISTS deadlock_weight (n INT)`,
	} {
		_, err := db.ExecContext(t.Context(), statement)
		require(t, err)
	}
	return func(exec func(statement string) error) error {
		t.Helper()
		return deadlock(t, db, exec)
	}
}

func deadlock(t testing.TB, db *sql.DB, exec func(statement string) error) error {
	t.Helper()
	ctx := t.Context()
	require(t, exec(`UPDATE deadlock_locks SET n = n + 1 WHERE id = 1`))

	other, err := db.BeginTx(ctx, nil)
	require(t, err)
	defer func() { _ = other.Rollback() }()
	_, err = other.ExecContext(ctx, `INSERT INTO deadlock_weight VALUES `+strings.TrimSuffix(strings.Repeat("(1), ", 1000), ", "))
	require(t, err)
	_, err = other.ExecContext(ctx, `UPDATE deadlock_locks SET n = n + 1 WHERE id = 2`)
	require(t, err)
	waited := make(chan error, 1) // the waits may begin in any order: the server ends the lighter transaction
	go func() {
		_, err := other.ExecContext(ctx, `UPDATE deadlock_locks SET n = n + 1 WHERE id = 1`)
		waited <- err
	}()
	failure := exec(`UPDATE deadlock_locks SET n = n + 1 WHERE id = 2`)
	require(t, Next(t, "the end of the wait", waited))
	if failure == nil || !strings.Contains(failure.Error(), "1213") {
		t.Fatalf("the server ended the other transaction, or none: %v", failure)
	}
	return failure
}

// InTx returns an exec for the function of NewDeadlock that runs in a transaction.
func InTx(ctx context.Context, tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}) func(statement string) error {
	return func(statement string) error {
		_, err := tx.ExecContext(ctx, statement)
		return err
	}
}
