package portable

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"
)

// longestMargin bounds the margin before a context's deadline.
const longestMargin = time.Second

// Wait returns for how many units the server may wait: wait, rounded up, but it ends somewhat
// before ctx's deadline, since a deadline that passes while the server waits costs the connection.
// It is at least one unit.
func Wait(ctx context.Context, wait, unit time.Duration) int64 {
	n := (max(wait, 0) + unit - 1) / unit
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		left -= min(left/4, longestMargin)
		n = min(n, left/unit)
	}
	return int64(max(1, n))
}

// OnConnection runs fn on one connection. If fn fails, the state of the connection is unknown: it
// is not used again, and its end is a rollback.
func OnConnection(ctx context.Context, db *sqlx.DB, fn func(conn *sqlx.Conn) error) (err error) {
	conn, err := db.Connx(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { Release(conn, err) }()
	return fn(conn)
}

// Release returns a connection to its pool, or closes it if err is the error of its last user.
func Release(conn *sqlx.Conn, err error) {
	if err != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	_ = conn.Close()
}
