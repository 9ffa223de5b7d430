package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pressly/goose/v3/lock"
)

// mysqlPatience is how many seconds one migrator waits for another.
const mysqlPatience = 60

// mysqlLock lets one migrator at a time into a database. In MySQL every statement
// on tables commits by itself, so that a crash can come between any two: each must
// be one that can be run again, and no two migrators may run them side by side.
type mysqlLock struct {
	versions string // the table of goose's versions
}

var _ lock.SessionLocker = mysqlLock{}

// lockName is the lock's: locks belong to the server, and have 64 characters at most.
const lockName = `CONCAT('bridge_migrate_', SHA1(DATABASE()))`

// SessionLock takes the lock. It also puts right what a migrator has left that died
// between the creation of the table of versions and its first row.
func (l mysqlLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	var locked sql.NullBool
	query := fmt.Sprintf(`SELECT GET_LOCK(%s, %d)`, lockName, mysqlPatience)
	if err := conn.QueryRowContext(ctx, query).Scan(&locked); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if !locked.Bool {
		return errors.New("lock: another migrator does not end, or the address names no database")
	}
	var begun bool
	err := conn.QueryRowContext(ctx, `SELECT count(*) > 0 FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name = '`+l.versions+`'`).Scan(&begun)
	if err != nil || !begun {
		return err
	}
	_, err = conn.ExecContext(ctx, fmt.Sprintf(`INSERT INTO %[1]s (version_id, is_applied)
SELECT 0, true FROM DUAL WHERE NOT EXISTS (SELECT * FROM %[1]s)`, l.versions))
	return err
}

// SessionUnlock gives the lock back, as the end of the session would.
func (mysqlLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, `DO RELEASE_LOCK(`+lockName+`)`)
	return err
}
