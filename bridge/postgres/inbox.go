package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

// now never changes within a statement, so that an index can be searched for it.
const now = `(extract(epoch FROM statement_timestamp()) * 1000)::bigint`

// The tables of an inbox are empty too, or small, before they are not: see neverKept.
const anew = `CASE WHEN ${1} IS NULL THEN ` + neverKept + ` ELSE true END`

var inbox = tables.NewInbox(tables.Dialect{
	Bind:       sqlx.DOLLAR,
	Key:        "key",
	Now:        now,
	Claimed:    `(extract(epoch FROM claimed_at) * 1000)::bigint`,
	Limit:      "LIMIT ?",
	OnConflict: "ON CONFLICT DO NOTHING",
	Locked:     "FOR UPDATE SKIP LOCKED",
	Anew:       anew,
	Forgetting: "DELETE FROM bridge_inbox AS i WHERE key IN ($keys) AND",
	Classify:   classify,
})

var entities = tables.NewEntities(tables.StandardEntities(sqlx.DOLLAR, "now()", "floor(extract(epoch FROM now() - min(kept_at)))::bigint", anew, classify))

// An Inbox is the tables of processed keys, pending messages, marks and kept messages in one
// PostgreSQL database. It implements driver.Inbox.
//
// LockMark waits for an open transaction that has locked the mark, for as long as tx's
// lock_timeout allows. At REPEATABLE READ or above it fails with a serialization failure
// (SQLSTATE 40001) if the mark was changed after the transaction's first statement: roll back
// and try again.
type Inbox struct {
	tables.Inbox
	tables.Entities
}

var _ driver.Inbox = (*Inbox)(nil)

// OpenInbox checks that the inbox's tables are in db. If they are missing, of an unusable
// version or unlogged, the error wraps bridge.ErrNoSchema.
func OpenInbox(ctx context.Context, db *sql.DB) (*Inbox, error) {
	conn := sqlx.NewDb(db, "postgres")
	err := tables.CheckInbox(ctx, conn)
	if err == nil {
		err = checkLogged(ctx, conn, []string{"bridge_inbox", "bridge_inbox_pending", "bridge_mark", "bridge_kept"})
	}
	if err != nil {
		return nil, fmt.Errorf("open inbox: %w", classify(err))
	}
	return &Inbox{inbox.On(db), entities}, nil
}

const (
	claimOne = `INSERT INTO bridge_inbox (consumer, key) VALUES ($1, $2) ON CONFLICT DO NOTHING`

	// unnest returns the keys in their order, in which they are inserted.
	claimMany = `INSERT INTO bridge_inbox (consumer, key) SELECT $1, unnest($2::text::text[]) ON CONFLICT DO NOTHING RETURNING key`
)

// Claim inserts the keys in tx with one statement, which returns the keys that it has inserted.
// At each key it waits for an open transaction that has inserted that key, for as long as tx's
// lock_timeout allows. In a transaction at REPEATABLE READ or above, a key that was claimed after
// the transaction's first statement is a serialization failure (SQLSTATE 40001): roll back and
// try again.
func (*Inbox) Claim(ctx context.Context, tx bridge.Tx, consumer string, keys []string) (fresh []string, err error) {
	if err = tables.CheckClaim(consumer, keys); err == nil {
		if len(keys) == 1 {
			fresh, err = claimKey(ctx, tx, consumer, keys)
		} else {
			fresh, err = tables.ReadClaimed(ctx, tx, claimMany, consumer, texts(keys))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("claim keys: %w", classify(err))
	}
	return fresh, nil
}

func claimKey(ctx context.Context, tx bridge.Tx, consumer string, key []string) ([]string, error) {
	inserted, err := tx.Exec(ctx, claimOne, consumer, key[0])
	return key[:inserted], err
}

// texts returns texts as the text of a text[].
func texts(all []string) string {
	escaped := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	quoted := make([]string, len(all))
	for i, s := range all {
		quoted[i] = `"` + escaped.Replace(s) + `"`
	}
	return "{" + strings.Join(quoted, ",") + "}"
}
