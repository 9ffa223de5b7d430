package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

func nameInstance(ctx context.Context, tx bridge.Tx) (driver.Instance, error) {
	var file sql.NullString
	if err := portable.QueryRow(ctx, tx, nameFile, nil, &file); err != nil {
		return "", err
	}
	return instanceOf(file.String)
}

// instanceOf names the file: by its path, and by the file system's number if there is one. So a
// file that replaces another is another instance.
func instanceOf(path string) (driver.Instance, error) {
	if path == "" {
		return "a database in memory", nil
	}
	file, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	return driver.Instance("the file " + path + number(file)), nil
}

// A file remembers the file of the last check.
type file struct {
	mu   sync.Mutex
	last driver.Instance
}

// leaveReplaced closes the idle connections if their path leads to another file than at the last
// check. Each of them has the file open that it found at its start, maybe a removed one, and names
// the present one: SQLite shows only the path. So lookups in both would look like one instance.
func (f *file) leaveReplaced(ctx context.Context, db *sqlx.DB) error {
	var path sql.NullString
	if err := db.GetContext(ctx, &path, nameFile); err != nil {
		return err
	}
	now, err := instanceOf(path.String)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last != "" && f.last != now {
		if err := closeIdle(ctx, db); err != nil {
			return err
		}
	}
	f.last = now
	return nil
}

func closeIdle(ctx context.Context, db *sqlx.DB) error {
	var idle []*sqlx.Conn
	defer func() {
		for _, conn := range idle {
			portable.Release(conn, errReplaced)
		}
	}()
	for range db.Stats().Idle {
		conn, err := db.Connx(ctx)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		idle = append(idle, conn) // held, so that the next connection is another one
	}
	return nil
}

var errReplaced = errors.New("the file was replaced")
