package postgres

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

// An Inbox is the table of processed keys in one PostgreSQL database. It
// implements bridge.Inbox.
type Inbox struct{}

var _ bridge.Inbox = (*Inbox)(nil)

// OpenInbox checks that the inbox's table is in db. It returns an error that
// wraps bridge.ErrNoSchema if it is not, or is of another version.
func OpenInbox(ctx context.Context, db *sql.DB) (*Inbox, error) {
	if err := tables.CheckInbox(ctx, sqlx.NewDb(db, "postgres")); err != nil {
		return nil, fmt.Errorf("open inbox: %w", classify(err))
	}
	return &Inbox{}, nil
}

// Claim inserts the key in tx. It waits for an open transaction that has inserted
// it, for as long as tx's lock_timeout allows. In a transaction at REPEATABLE READ
// or above, a key that was claimed after the transaction's first statement is a
// serialization failure (SQLSTATE 40001): roll back and try again.
func (*Inbox) Claim(ctx context.Context, tx bridge.Tx, consumer, key string) (bool, error) {
	claimed, err := tables.Claim(ctx, tx, sqlx.DOLLAR, consumer, key)
	if err != nil {
		return false, fmt.Errorf("claim key: %w", classify(err))
	}
	return claimed, nil
}
