package mysql

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

var inboxVerbs = portable.InboxVerbs{
	Packing:     packing,
	IsDuplicate: func(err error) bool { return errorNumber(err) == duplicateKey },
	Classify:    classify,
}

// packing sends bytes as ASCII. A parameter is text to the server, which converts it if
// character_set_connection differs from character_set_client: see statements.go.
var packing = portable.Packing{
	Name:  func(s string) any { return packBytes([]byte(s)) },
	Bytes: packBytes,
	Text:  func(s string) string { return s }, // it is ASCII already
	Error: func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
}

func packBytes(b []byte) []byte {
	if b == nil {
		return nil
	}
	return base64.StdEncoding.AppendEncode([]byte{}, b)
}

// An Inbox holds the tables of processed keys, pending messages, marks and kept messages in one
// MySQL or MariaDB database. It implements driver.Inbox.
//
// LockMark waits for an open transaction that has locked the mark, for as long as tx's
// innodb_lock_wait_timeout allows (error 1205). If several wait for a transaction that has created
// the mark and rolls back, InnoDB may end all but one of them with a deadlock (1213): roll back and
// try again. At REPEATABLE READ, the default, the first LockMark of a name sometimes also waits for
// a transaction that has locked another name: the server locks gaps too. If that delays you, put
// transaction_isolation='READ-COMMITTED' into the receiver's DSN (tx_isolation on MariaDB before
// 11.1). (Measured on MariaDB 10.11: 5 of 267 rounds of the suite beside a purge, none of 1,429 at
// READ COMMITTED.)
type Inbox struct {
	portable.Inbox
	portable.Entities
	fence
}

var _ driver.Inbox = (*Inbox)(nil)

// OpenInbox checks that the inbox's tables are in db. If they are missing or of an unusable
// version, the error wraps bridge.ErrNoSchema.
func OpenInbox(ctx context.Context, db *sql.DB) (*Inbox, error) {
	if err := portable.CheckInbox(ctx, sqlx.NewDb(db, "mysql"), schema.Name{}); err != nil {
		return nil, fmt.Errorf("open inbox: %w", classify(err))
	}
	return &Inbox{Inbox: portable.NewInbox(db, inboxStatements, inboxVerbs), Entities: entities}, nil
}

// claimMost is how many keys one INSERT claims: at most 100 kB of text.
const claimMost = 100

// Claim inserts the keys in tx, up to 100 with a statement. It waits at each key for an open
// transaction that has inserted that key, for as long as tx's innodb_lock_wait_timeout allows
// (error 1205). If one of the keys is claimed, the statement fails as a whole, and its keys are
// inserted in smaller groups, down to one. InnoDB may end all but one of several waiting
// transactions with a deadlock (1213), if they wait for a transaction that rolls back, or if two
// claim some of the same keys and find one of these claimed: roll back and try again.
func (*Inbox) Claim(ctx context.Context, tx bridge.Tx, consumer string, keys []string) (fresh []string, err error) {
	if err := portable.CheckClaim(consumer, keys); err != nil {
		return nil, fmt.Errorf("claim keys: %w", err)
	}
	fresh, err = portable.ClaimParts(keys, claimMost, func(keys []string) (duplicate bool, err error) {
		text := []byte(claimKeys)
		for n, key := range keys {
			if n > 0 {
				text = append(text, ", "...)
			}
			text = fmt.Appendf(text, claimKey, consumer, key)
		}
		_, err = tx.Exec(ctx, string(text))
		if errorNumber(err) == duplicateKey {
			return true, nil
		}
		return false, err
	})
	if err != nil {
		return nil, fmt.Errorf("claim keys: %w", classify(err))
	}
	return fresh, nil
}

// Forget deletes claims with one statement.
func (*Inbox) Forget(ctx context.Context, tx bridge.Tx, consumer string, keys []string, age time.Duration) (int64, error) {
	if err := portable.CheckKeys(consumer, keys); err != nil {
		return 0, fmt.Errorf("forget claims: %w", err)
	}
	digits := make([]string, len(keys))
	for n, key := range keys {
		digits[n] = hex.EncodeToString([]byte(key))
	}
	text, err := json.Marshal(digits)
	if err != nil {
		return 0, fmt.Errorf("forget claims: %w", err)
	}
	forgotten, err := tx.Exec(ctx, forgetKeys, string(text), packBytes([]byte(consumer)), age.Milliseconds())
	if err != nil {
		return 0, fmt.Errorf("forget claims: %w", classify(err))
	}
	return forgotten, nil
}
