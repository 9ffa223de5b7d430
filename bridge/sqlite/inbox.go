package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

var inboxVerbs = portable.InboxVerbs{Packing: portable.Unpacked, Classify: classify}

var entities = portable.NewEntities(entityStatements, portable.EntityVerbs{
	Bind:     func(statement string, args ...any) (string, []any) { return statement, args },
	Classify: func(err error, _ string) error { return classify(err) },
})

// An Inbox holds the tables of processed keys, pending messages, marks and kept messages in one
// SQLite database. It implements driver.Inbox.
//
// LockMark locks the file. It waits for any other transaction that writes to the file, for as long
// as the connection's busy_timeout allows, and then returns SQLITE_BUSY. Make it the first
// statement of tx, like Claim.
type Inbox struct {
	portable.Inbox
	portable.Entities
	fence
}

var _ driver.Inbox = (*Inbox)(nil)

// OpenInbox checks that the inbox's tables are in db. If they are missing or of an unusable
// version, the error wraps bridge.ErrNoSchema.
func OpenInbox(ctx context.Context, db *sql.DB) (*Inbox, error) {
	if err := portable.CheckInbox(ctx, sqlx.NewDb(db, "sqlite"), schema.Name{}); err != nil {
		return nil, fmt.Errorf("open inbox: %w", classify(err))
	}
	return &Inbox{Inbox: portable.NewInbox(db, inboxStatements, inboxVerbs), Entities: entities}, nil
}

// TakePending first waits for any other transaction that writes to the database.
func (i *Inbox) TakePending(ctx context.Context, tx bridge.Tx, consumer string, state driver.State) (*driver.Pending, error) {
	if _, err := tx.Exec(ctx, lockForWriting); err != nil {
		return nil, fmt.Errorf("take pending message: %w", classify(err))
	}
	return i.Inbox.TakePending(ctx, tx, consumer, state)
}

// claimMost is how many keys one statement claims: a build of SQLite may take no more than 999
// parameters.
const claimMost = 400

// Claim inserts the keys in tx, up to 400 with a statement, which returns the inserted keys. It
// waits for any other transaction that writes to the database, for as long as the connection's
// busy_timeout allows, and then returns SQLITE_BUSY. Make it the first statement of tx: SQLite lets
// no transaction write that has read an older state.
func (*Inbox) Claim(ctx context.Context, tx bridge.Tx, consumer string, keys []string) (fresh []string, err error) {
	if err := portable.CheckClaim(consumer, keys); err != nil {
		return nil, fmt.Errorf("claim keys: %w", err)
	}
	for some := range slices.Chunk(keys, claimMost) {
		args := make([]any, 0, 2*len(some))
		for _, key := range some {
			args = append(args, consumer, key)
		}
		claimed, err := portable.ReadClaimed(ctx, tx, claimOne+strings.Repeat(claimMore, len(some)-1)+claimEnd, args...)
		if err != nil {
			return nil, fmt.Errorf("claim keys: %w", classify(err))
		}
		fresh = append(fresh, claimed...)
	}
	return fresh, nil
}
