package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

// An Inbox is the table of processed keys in one SQLite database. It
// implements bridge.Inbox.
type Inbox struct{}

var _ bridge.Inbox = (*Inbox)(nil)

// OpenInbox checks that the inbox's table is in db. It returns an error that
// wraps bridge.ErrNoSchema if it is not, or is of another version.
func OpenInbox(ctx context.Context, db *sql.DB) (*Inbox, error) {
	if err := tables.CheckInbox(ctx, sqlx.NewDb(db, "sqlite")); err != nil {
		return nil, fmt.Errorf("open inbox: %w", classify(err))
	}
	return &Inbox{}, nil
}

// Claim inserts the key in tx. It waits for any other transaction that writes to
// the database, for as long as the connection's busy_timeout allows, and returns
// SQLITE_BUSY after it. Make it the first statement of tx: SQLite does not let a
// transaction that has read an older state write.
func (*Inbox) Claim(ctx context.Context, tx bridge.Tx, consumer, key string) (bool, error) {
	claimed, err := tables.Claim(ctx, tx, sqlx.QUESTION, consumer, key)
	if err != nil {
		return false, fmt.Errorf("claim key: %w", classify(err))
	}
	return claimed, nil
}
