package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"
)

// mysqlPatience is how many seconds one migrator waits for another.
const mysqlPatience = 60

// mysqlTableWait is how many seconds a statement on tables waits for open transactions. All other
// statements wait behind it meanwhile, by default up to a day (MariaDB) or a year (MySQL).
const mysqlTableWait = 3

// mysqlLock admits one migrator at a time to a database. In MySQL every statement on tables commits
// by itself, so a crash can come between any two: each must be repeatable, and no two migrators may
// run them at the same time.
type mysqlLock struct {
	versions string // the table of goose's versions
}

var _ lock.SessionLocker = mysqlLock{}

// lockName is the name of the lock: locks belong to the server, and have 64 characters at most.
// MySQL 9 has neither SHA1 nor MD5; SHA2 is in every release.
const lockName = `CONCAT('bridge_migrate_', LEFT(SHA2(DATABASE(), 256), 40))`

// SessionLock takes the lock, and bounds the waits of the statements that follow.
func (l mysqlLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	var locked sql.NullBool
	query := fmt.Sprintf(`SELECT GET_LOCK(%s, %d)`, lockName, mysqlPatience)
	if err := conn.QueryRowContext(ctx, query).Scan(&locked); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if !locked.Bool {
		return errors.New("lock: another migrator is still running, or the address names no database")
	}
	bound := fmt.Sprintf(`SET @bridge_usual_wait = @@SESSION.lock_wait_timeout, SESSION lock_wait_timeout = %d`, mysqlTableWait)
	if _, err := conn.ExecContext(ctx, bound); err != nil {
		return fmt.Errorf("bound the waits: %w", err)
	}
	return nil
}

// makeTable makes the table of versions with its first row, or completes the work of a migrator
// that died in between. goose would make it without the lock.
func (l mysqlLock) makeTable(ctx context.Context, db *sql.DB) (err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if err := l.SessionLock(ctx, conn); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.SessionUnlock(context.WithoutCancel(ctx), conn)) }()
	var there bool
	err = conn.QueryRowContext(ctx, `SELECT count(*) > 0 FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name = '`+l.versions+`'`).Scan(&there)
	if err != nil {
		return err
	}
	if !there {
		store, err := database.NewStore(goose.DialectMySQL, l.versions)
		if err != nil {
			return err
		}
		if err := store.CreateVersionTable(ctx, conn); err != nil {
			return fmt.Errorf("create table of versions: %w", err)
		}
	}
	_, err = conn.ExecContext(ctx, fmt.Sprintf(`INSERT INTO %[1]s (version_id, is_applied)
SELECT 0, true FROM DUAL WHERE NOT EXISTS (SELECT * FROM %[1]s)`, l.versions))
	return err
}

// SessionUnlock frees the lock, as the end of the session would, and restores the session's waits.
func (mysqlLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, `SET SESSION lock_wait_timeout = @bridge_usual_wait`)
	if err == nil {
		_, err = conn.ExecContext(ctx, `DO RELEASE_LOCK(`+lockName+`)`)
	}
	return err
}
