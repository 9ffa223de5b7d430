package driver

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/lost"
)

// Begin calls begin, which begins a transaction on a connection of db and does nothing else. Some
// drivers notice a lost connection only when they use it (go-mssqldb 1.11, which returns EOF). Then
// Begin calls begin again: as often as the pool has idle connections, and at least once. If the
// last connection is lost too, the error wraps bridge.ErrNotBegun.
func Begin(ctx context.Context, db *sql.DB, begin func() error) error {
	for left := max(1, db.Stats().Idle); ; left-- {
		err := begin()
		switch {
		case err == nil || !lost.Is(err) || ctx.Err() != nil:
			return err
		case left == 0:
			return fmt.Errorf("%w: %w", bridge.ErrNotBegun, err)
		}
	}
}
