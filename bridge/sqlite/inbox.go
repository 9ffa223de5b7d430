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

var inbox = portable.NewInbox(portable.Dialect{
	Bind:       sqlx.QUESTION,
	Key:        "key",
	Now:        `CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)`,
	Claimed:    `claimed_at * 1000`,
	Limit:      "LIMIT ?",
	OnConflict: "ON CONFLICT DO NOTHING",
	Forgetting: "DELETE FROM bridge_inbox AS i WHERE key IN ($keys) AND",
	Classify:   classify,
})

var entities = portable.NewEntities(portable.StandardEntities(schema.Name{}, sqlx.QUESTION, "unixepoch()", "unixepoch() - min(kept_at)", "", classify))

// An Inbox holds the tables of processed keys, pending messages, marks and kept messages in one
// SQLite database. It implements driver.Inbox.
//
// LockMark locks the file. It waits for any other transaction that writes to the file, for as long
// as the connection's busy_timeout allows, and then returns SQLITE_BUSY. Make it the first
// statement of tx, like Claim.
type Inbox struct {
	portable.Inbox
	portable.Entities
}

var _ driver.Inbox = (*Inbox)(nil)

// OpenInbox checks that the inbox's tables are in db. If they are missing or of an unusable
// version, the error wraps bridge.ErrNoSchema.
func OpenInbox(ctx context.Context, db *sql.DB) (*Inbox, error) {
	if err := portable.CheckInbox(ctx, sqlx.NewDb(db, "sqlite"), schema.Name{}); err != nil {
		return nil, fmt.Errorf("open inbox: %w", classify(err))
	}
	return &Inbox{inbox.On(db), entities}, nil
}

// lockForWriting takes the file's write lock for a transaction that has only read, and waits for
// other writers: SQLite lets no transaction write that has read an older state. No key is empty, so
// it changes no row.
const lockForWriting = `UPDATE bridge_inbox_pending SET run = run WHERE consumer = '' AND message_key = ''`

// TakePending first waits for any other transaction that writes to the database.
func (i *Inbox) TakePending(ctx context.Context, tx bridge.Tx, consumer string, state driver.State) (*driver.Pending, error) {
	if _, err := tx.Exec(ctx, lockForWriting); err != nil {
		return nil, fmt.Errorf("take pending message: %w", classify(err))
	}
	return i.Inbox.TakePending(ctx, tx, consumer, state)
}

const (
	claimOne  = `INSERT INTO bridge_inbox (consumer, key) VALUES (?, ?)`
	claimMore = `, (?, ?)`
	claimEnd  = ` ON CONFLICT DO NOTHING RETURNING key`

	// claimMost is how many keys one statement claims: a build of SQLite may take no more than 999
	// parameters.
	claimMost = 400
)

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
