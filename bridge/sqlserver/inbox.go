package sqlserver

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/mssql"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

// With XACT_ABORT ON a duplicate would end the caller's transaction. The server
// takes the SET back with the end of the text.
var claim = packing.Unpack(`SET XACT_ABORT OFF;
INSERT INTO bridge_inbox (consumer, [key]) VALUES (bytes(@p1), bytes(@p2))`)

const inboxState = `SELECT (SELECT max(version_id) FROM bridge_inbox_version) AS version, ` + mssql.ServerColumns

const (
	claimRights     = "INSERT ON bridge_inbox"
	openInboxRights = "SELECT ON bridge_inbox_version"
	pendingRights   = "SELECT, DELETE ON bridge_inbox, and SELECT, INSERT, UPDATE, DELETE ON bridge_inbox_pending"
)

// FORCESEEK, in the FROM clause, which is where a target may have it: an optimizer that
// has seen a small table may else choose to read all of it, and wait for the locks of
// others ('Table hints').
//
// A look must not see a claim of now beside a row of the statement's start, which is what
// READ_COMMITTED_SNAPSHOT would show of it: a key that is claimed without a row is done.
// So it reads first the claim, then the row, both by locks; REPEATABLEREAD keeps whoever
// would unclaim the key waiting until the row is read. Where hints are ignored, a
// statement reads one snapshot, and of two who take the same row the second finds that
// its run has changed.
var inbox = tables.NewInbox(tables.Dialect{
	Bind:        sqlx.AT,
	Key:         "[key]",
	Now:         nowMS,
	Claimed:     `DATEDIFF_BIG(millisecond, '19700101', claimed_at)`,
	Limit:       "OFFSET 0 ROWS FETCH NEXT ? ROWS ONLY",
	Bytes:       true,
	Packing:     packing,
	Insert:      "SET XACT_ABORT OFF;",
	Seeking:     "WITH (ROWLOCK, FORCESEEK)",
	State:       "CAST(text(?) AS varchar(16))",
	Claiming:    "WITH (REPEATABLEREAD, ROWLOCK, FORCESEEK)",
	Beside:      "WITH (READCOMMITTEDLOCK, ROWLOCK, FORCESEEK)",
	Join:        "LEFT OUTER LOOP JOIN",
	Forgetting:  "DELETE i FROM (VALUES $keys) AS k (k) INNER LOOP JOIN bridge_inbox i WITH (ROWLOCK, FORCESEEK) ON i.[key] = k.k WHERE",
	IsDuplicate: isDuplicate,
	Classify:    func(err error) error { return classify(err, pendingRights) },
})

// An Inbox is the tables of processed keys, pending messages, marks and kept messages in one
// SQL Server database. It implements driver.Inbox.
//
// LockMark waits for an open transaction that has locked the mark, for as long as the session's
// LOCK_TIMEOUT allows. At SNAPSHOT it fails with error 3960 if the mark was changed after the
// snapshot: roll back and try again.
type Inbox struct {
	tables.Inbox
	tables.Entities
}

var _ driver.Inbox = (*Inbox)(nil)

// OpenInbox checks that the inbox's tables are in db. If they are missing or of an unusable
// version, the error wraps bridge.ErrNoSchema.
func OpenInbox(ctx context.Context, db *sql.DB) (*Inbox, error) {
	var found struct {
		Version sql.NullInt64
		mssql.Server
	}
	err := mssql.Try(ctx, func(ctx context.Context) error {
		return sqlx.NewDb(db, "sqlserver").GetContext(ctx, &found, inboxState)
	})
	if err != nil {
		return nil, fmt.Errorf("open inbox: %w", classify(err, openInboxRights))
	}
	if err := found.Check(); err != nil {
		return nil, fmt.Errorf("open inbox: %w", err)
	}
	if err := tables.CheckInboxVersion(found.Version.Int64); err != nil {
		return nil, fmt.Errorf("open inbox: %w", err)
	}
	return &Inbox{inbox.On(db), entities}, nil
}

// Claim inserts the key in tx. It waits for an open transaction that has inserted
// it, for as long as the session's LOCK_TIMEOUT allows. Keys are kept as bytes, in
// which all of them differ that differ in any way.
func (*Inbox) Claim(ctx context.Context, tx bridge.Tx, consumer, key string) (bool, error) {
	if err := tables.CheckKey(consumer, key); err != nil {
		return false, fmt.Errorf("claim key: %w", err)
	}
	_, err := tx.Exec(ctx, claim, packed(consumer), packed(key))
	switch {
	case isDuplicate(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("claim key: %w", classify(err, claimRights))
	default:
		return true, nil
	}
}
