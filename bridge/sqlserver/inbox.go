package sqlserver

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

// With XACT_ABORT ON a duplicate would end the caller's transaction. The server
// takes the SET back with the end of the text.
const claim = `SET XACT_ABORT OFF;
INSERT INTO bridge_inbox (consumer, [key]) VALUES (@p1, @p2)`

const (
	claimRights     = "INSERT ON bridge_inbox"
	openInboxRights = "SELECT ON bridge_inbox_version"
)

// An Inbox is the table of processed keys in one SQL Server database. It
// implements bridge.Inbox.
type Inbox struct{}

var _ bridge.Inbox = (*Inbox)(nil)

// OpenInbox checks that the inbox's table is in db. It returns an error that
// wraps bridge.ErrNoSchema if it is not, or is of another version.
func OpenInbox(ctx context.Context, db *sql.DB) (*Inbox, error) {
	var version sql.NullInt64
	err := try(ctx, func(ctx context.Context) error {
		return db.QueryRowContext(ctx, `SELECT max(version_id) FROM bridge_inbox_version`).Scan(&version)
	})
	if err != nil {
		return nil, fmt.Errorf("open inbox: %w", classify(err, openInboxRights))
	}
	if err := tables.CheckInboxVersion(version.Int64); err != nil {
		return nil, fmt.Errorf("open inbox: %w", err)
	}
	return &Inbox{}, nil
}

// Claim inserts the key in tx. It waits for an open transaction that has inserted
// it, for as long as the session's LOCK_TIMEOUT allows. Keys are kept as bytes, in
// which all of them differ that differ in any way.
func (*Inbox) Claim(ctx context.Context, tx bridge.Tx, consumer, key string) (bool, error) {
	if err := tables.CheckKey(consumer, key); err != nil {
		return false, fmt.Errorf("claim key: %w", err)
	}
	_, err := tx.ExecContext(ctx, claim, []byte(consumer), []byte(key))
	switch {
	case isDuplicate(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("claim key: %w", classify(err, claimRights))
	default:
		return true, nil
	}
}
