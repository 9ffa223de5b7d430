package mysql

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

// An Inbox is the table of processed keys in one MySQL or MariaDB database. It
// implements bridge.Inbox.
type Inbox struct{}

var _ bridge.Inbox = (*Inbox)(nil)

// OpenInbox checks that the inbox's table is in db. It returns an error that
// wraps bridge.ErrNoSchema if it is not, or is of another version.
func OpenInbox(ctx context.Context, db *sql.DB) (*Inbox, error) {
	if err := tables.CheckInbox(ctx, sqlx.NewDb(db, "mysql")); err != nil {
		return nil, fmt.Errorf("open inbox: %w", classify(err))
	}
	return &Inbox{}, nil
}

// Claim inserts the key in tx. It waits for an open transaction that has inserted
// it, for as long as tx's innodb_lock_wait_timeout allows (error 1205). Where
// several wait for one that rolls back, InnoDB may end all but one of them with a
// deadlock (1213): roll back and try again.
func (*Inbox) Claim(ctx context.Context, tx bridge.Tx, consumer, key string) (bool, error) {
	if err := tables.CheckKey(consumer, key); err != nil {
		return false, fmt.Errorf("claim key: %w", err)
	}
	// The duplicate is told by its error, which leaves tx as it was. INSERT IGNORE
	// would take every other error for a duplicate too, and the count of ON DUPLICATE
	// KEY UPDATE depends on how the driver has connected.
	_, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO bridge_inbox (consumer, `key`) VALUES (UNHEX('%s'), UNHEX('%s'))",
		hex.EncodeToString([]byte(consumer)), hex.EncodeToString([]byte(key))))
	switch {
	case number(err) == duplicateKey:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("claim key: %w", classify(err))
	}
	return true, nil
}
