package driver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/lost"
)

// Begin calls begin, which begins a transaction on a connection of db and does nothing else. Some
// drivers notice a lost connection only when they use it (go-mssqldb 1.11, which returns EOF). Then
// Begin calls begin again: as often as the pool has idle connections, and at least once. If the
// last connection is lost too, or none can be opened over the network, the error wraps
// bridge.ErrNotBegun.
func Begin(ctx context.Context, db *sql.DB, begin func() error) error {
	for left := max(1, db.Stats().Idle); ; left-- {
		err := begin()
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case isUnreachable(err), left == 0 && lost.Is(err):
			return fmt.Errorf("%w: %w", bridge.ErrNotBegun, err)
		case !lost.Is(err):
			return err
		}
	}
}

// isUnreachable reports whether err means that no connection could be opened.
func isUnreachable(err error) bool {
	dial, failed := errors.AsType[*net.OpError](err)
	return failed && dial.Op == "dial"
}
