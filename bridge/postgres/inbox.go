package postgres

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

func inboxIn(in schema.Name, db *sql.DB) portable.Inbox {
	return portable.NewInbox(db, inboxStatements, portable.InboxVerbs{Schema: in, Packing: portable.Unpacked, Stored: fromHex, Classify: classifyIn(in)})
}

func entitiesIn(in schema.Name) portable.Entities {
	return portable.NewEntities(entityStatements, portable.EntityVerbs{
		Bind:     func(statement string, args ...any) (string, []any) { return in.In(statement), args },
		Stored:   fromHex,
		Classify: func(err error, _ string) error { return classify(in, err) },
	})
}

// fromHex returns a message that a statement has returned as hex digits.
func fromHex(digits []byte) ([]byte, error) {
	if digits == nil {
		return nil, nil
	}
	return hex.AppendDecode([]byte{}, digits)
}

// An Inbox holds the tables of processed keys, pending messages, marks and kept messages in one
// PostgreSQL database. It implements driver.Inbox.
//
// LockMark waits for an open transaction that has locked the mark, for as long as tx's lock_timeout
// allows. At REPEATABLE READ or above it fails with a serialization failure (SQLSTATE 40001) if the
// mark was changed after the transaction's first statement: roll back and try again.
type Inbox struct {
	portable.Inbox
	portable.Entities
	schema schema.Name
}

var _ driver.Inbox = (*Inbox)(nil)

// OpenInbox checks that the inbox's tables are in db. If they are missing, of an unusable
// version or unlogged, the error wraps bridge.ErrNoSchema.
func OpenInbox(ctx context.Context, db *sql.DB) (*Inbox, error) { return Schema("").OpenInbox(ctx, db) }

// OpenInbox opens the inbox whose tables are in the schema, as the function OpenInbox does.
func (s Schema) OpenInbox(ctx context.Context, db *sql.DB) (*Inbox, error) {
	in, err := schema.PostgreSQL(string(s))
	if err != nil {
		return nil, fmt.Errorf("open inbox: %w", err)
	}
	conn := sqlx.NewDb(db, "postgres")
	if err = portable.CheckInbox(ctx, conn, in); err == nil {
		err = checkLogged(ctx, conn, []string{in.In("bridge_inbox"), in.In("bridge_inbox_pending"), in.In("bridge_mark"), in.In("bridge_kept")})
	}
	if err != nil {
		return nil, fmt.Errorf("open inbox: %w", classify(in, err))
	}
	return &Inbox{inboxIn(in, db), entitiesIn(in), in}, nil
}

// Claim inserts the keys in tx with one statement, which returns the inserted keys. At each key it
// waits for an open transaction that has inserted that key, for as long as tx's lock_timeout
// allows. In a transaction at REPEATABLE READ or above, a key that was claimed after the
// transaction's first statement is a serialization failure (SQLSTATE 40001): roll back and try
// again.
func (i *Inbox) Claim(ctx context.Context, tx bridge.Tx, consumer string, keys []string) (fresh []string, err error) {
	if err = portable.CheckClaim(consumer, keys); err == nil {
		if len(keys) == 1 {
			fresh, err = i.claimKey(ctx, tx, consumer, keys)
		} else {
			fresh, err = portable.ReadClaimed(ctx, tx, i.schema.In(claimMany), consumer, texts(keys))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("claim keys: %w", classify(i.schema, err))
	}
	return fresh, nil
}

func (i *Inbox) claimKey(ctx context.Context, tx bridge.Tx, consumer string, key []string) ([]string, error) {
	inserted, err := tx.Exec(ctx, i.schema.In(claimOne), consumer, key[0])
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
