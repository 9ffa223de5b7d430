package bridge

import (
	"context"
	"database/sql"
)

// Tx is what the bridge uses of the caller's transaction. *sql.Tx and *sqlx.Tx
// satisfy it; *sql.DB and *sql.Conn do not, so that a statement that must be in
// a transaction cannot be sent outside of one. It has no Commit and no Rollback:
// the caller's transaction belongs to the caller.
// (StmtContext is there to tell a transaction from a *sql.Conn.)
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	StmtContext(ctx context.Context, stmt *sql.Stmt) *sql.Stmt
}
