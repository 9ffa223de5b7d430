package sqlserver

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

const (
	claimRights     = "INSERT ON bridge_inbox"
	openInboxRights = "SELECT ON bridge_inbox_version"
	pendingRights   = "SELECT, DELETE ON bridge_inbox, and SELECT, INSERT, UPDATE, DELETE ON bridge_inbox_pending"
)

func inboxIn(in schema.Name, db *sql.DB) portable.Inbox {
	return portable.NewInbox(db, inboxStatements, portable.InboxVerbs{
		Schema:      in,
		Packing:     packing,
		IsDuplicate: isDuplicate,
		Classify:    func(err error) error { return classify(in, err, pendingRights) },
	})
}

// An Inbox holds the tables of processed keys, pending messages, marks and kept messages in one SQL
// Server database. It implements driver.Inbox.
//
// LockMark waits for an open transaction that has locked the mark, for as long as the session's
// LOCK_TIMEOUT allows. At SNAPSHOT it fails with error 3960 if the mark was changed after the
// snapshot: roll back and try again.
type Inbox struct {
	portable.Inbox
	portable.Entities
	schema schema.Name
}

var _ driver.Inbox = (*Inbox)(nil)

// OpenInbox checks that the inbox's tables are in db. If they are missing or of an unusable
// version, the error wraps bridge.ErrNoSchema.
func OpenInbox(ctx context.Context, db *sql.DB) (*Inbox, error) { return Schema("").OpenInbox(ctx, db) }

// OpenInbox opens the inbox whose tables are in the schema, as the function OpenInbox does.
func (s Schema) OpenInbox(ctx context.Context, db *sql.DB) (*Inbox, error) {
	in, err := schema.SQLServer(string(s))
	if err != nil {
		return nil, fmt.Errorf("open inbox: %w", err)
	}
	var found struct {
		Version sql.NullInt64
		release
	}
	err = try(ctx, func(ctx context.Context) error {
		return sqlx.NewDb(db, "sqlserver").GetContext(ctx, &found, in.In(inboxState))
	})
	if err != nil {
		return nil, fmt.Errorf("open inbox: %w", classify(in, err, openInboxRights))
	}
	if err := found.check(); err != nil {
		return nil, fmt.Errorf("open inbox: %w", err)
	}
	if err := portable.CheckInboxVersion(found.Version.Int64); err != nil {
		return nil, fmt.Errorf("open inbox: %w", err)
	}
	return &Inbox{inboxIn(in, db), entitiesIn(in), in}, nil
}

// Claim inserts the keys in tx, up to 100 with a statement. It waits at each key for an open
// transaction that has inserted that key, for as long as the session's LOCK_TIMEOUT allows. If one
// of the keys is claimed, the statement fails as a whole, and its keys are inserted in smaller
// groups, down to one. Keys are kept as bytes, so that no collation makes two keys equal.
func (i *Inbox) Claim(ctx context.Context, tx bridge.Tx, consumer string, keys []string) (fresh []string, err error) {
	if err := portable.CheckClaim(consumer, keys); err != nil {
		return nil, fmt.Errorf("claim keys: %w", err)
	}
	fresh, err = portable.ClaimParts(keys, 100, func(keys []string) (duplicate bool, err error) {
		size := room(len(keys), []int{1, 10, 100})
		args := make([]any, 0, size+2)
		args = append(args, packed(consumer), int64(len(keys)))
		for n := range size {
			args = append(args, packed(keys[min(n, len(keys)-1)]))
		}
		inserted, err := tx.Exec(ctx, i.schema.In(claim[size]), args...)
		if isDuplicate(err) {
			return true, nil
		}
		return false, expectInserted("bridge_inbox", inserted, len(keys), err)
	})
	if err != nil {
		return nil, fmt.Errorf("claim keys: %w", classify(i.schema, err, claimRights))
	}
	return fresh, nil
}

// expectInserted returns err, or an error if the table has not taken all rows. An index with
// IGNORE_DUP_KEY skips a duplicate without an error, and a trigger may replace the INSERT. A trigger
// may also count rows of its own.
func expectInserted(table string, inserted int64, rows int, err error) error {
	if err == nil && inserted < int64(rows) {
		err = fmt.Errorf("%s took %d of %d rows: does its key have IGNORE_DUP_KEY, or the table a trigger?", table, inserted, rows)
	}
	return err
}
