package sqlserver

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

// With XACT_ABORT ON a duplicate would end the caller's transaction. The server
// takes the SET back with the end of the text.
const claim = `SET XACT_ABORT OFF;
INSERT INTO bridge_inbox (consumer, [key]) VALUES (@p1, @p2)`

const inboxState = `SELECT (SELECT max(version_id) FROM bridge_inbox_version) AS version, ` + product

const (
	claimRights     = "INSERT ON bridge_inbox"
	openInboxRights = "SELECT ON bridge_inbox_version"
	pendingRights   = "SELECT, DELETE ON bridge_inbox, and SELECT, INSERT, UPDATE, DELETE ON bridge_inbox_pending"
)

// Beside rows that others have locked, READPAST needs READCOMMITTEDLOCK where the
// database has READ_COMMITTED_SNAPSHOT. REPEATABLEREAD keeps whoever would unclaim the
// key waiting until the rest of the statement is read. Where hints are ignored, a
// statement reads one snapshot, and of two who take the same row the second finds that
// its run has changed.
var inbox = tables.NewInbox(tables.Dialect{
	Bind:        sqlx.AT,
	Key:         "[key]",
	Now:         `DATEDIFF_BIG(millisecond, '19700101', SYSUTCDATETIME())`,
	Claimed:     `DATEDIFF_BIG(millisecond, '19700101', claimed_at)`,
	Limit:       "OFFSET 0 ROWS FETCH NEXT ? ROWS ONLY",
	Bytes:       true,
	Insert:      "SET XACT_ABORT OFF;",
	Reading:     "WITH (REPEATABLEREAD, ROWLOCK)",
	Taking:      "WITH (UPDLOCK, READCOMMITTEDLOCK, READPAST, ROWLOCK)",
	Forgetting:  "DELETE i FROM (VALUES $keys) AS k (k) INNER LOOP JOIN bridge_inbox i WITH (ROWLOCK) ON i.[key] = k.k WHERE",
	IsDuplicate: isDuplicate,
	Classify:    func(err error) error { return classify(err, pendingRights) },
})

// An Inbox is the table of processed keys in one SQL Server database, with the
// pending messages beside it. It implements bridge.Inbox.
type Inbox struct{ tables.Inbox }

var _ bridge.Inbox = (*Inbox)(nil)

// OpenInbox checks that the inbox's tables are in db. It returns an error that
// wraps bridge.ErrNoSchema if they are not, or are of another version.
func OpenInbox(ctx context.Context, db *sql.DB) (*Inbox, error) {
	var found struct {
		Version sql.NullInt64
		serverProduct
	}
	err := try(ctx, func(ctx context.Context) error {
		return sqlx.NewDb(db, "sqlserver").GetContext(ctx, &found, inboxState)
	})
	if err != nil {
		return nil, fmt.Errorf("open inbox: %w", classify(err, openInboxRights))
	}
	if err := found.check(); err != nil {
		return nil, fmt.Errorf("open inbox: %w", err)
	}
	if err := tables.CheckInboxVersion(found.Version.Int64); err != nil {
		return nil, fmt.Errorf("open inbox: %w", err)
	}
	return &Inbox{inbox}, nil
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
