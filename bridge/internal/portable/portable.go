// Package portable is the portable part of the ledgers and inboxes of all databases. A database's
// package embeds Ledger, Inbox and Entities, and gives them its statements and Verbs.
package portable

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// The versions of the schema that this release makes: the last of the migrations. The comment of
// package migrate has the rule for a new one.
const (
	ledgerVersion = 4
	inboxVersion  = 3
)

// ahead is how many versions the tables may be ahead of a release, so that they can be migrated
// while programs of the previous release run and start.
const ahead = 1

// Chunk bounds the rows or IDs of one statement, so that no lock is held for long.
const Chunk = 1000

// maxKey is the longest key that every database can index, in bytes.
const maxKey = 255

// ReadIdentity returns the ledger's identity after a check of its version. It returns the
// database's errors unchanged.
func ReadIdentity(ctx context.Context, db *sqlx.DB, in schema.Name) (uuid.UUID, error) {
	var row struct {
		Identity uuid.UUID
		Version  sql.NullInt64
	}
	err := db.GetContext(ctx, &row,
		in.In(`SELECT identity, (SELECT max(version_id) FROM bridge_ledger_version) AS version FROM bridge_identity`))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return uuid.Nil, fmt.Errorf("%w: bridge_identity is empty; drop the bridge's tables and call migrate.Ledger", bridge.ErrNoSchema)
	case err != nil:
		return uuid.Nil, err
	}
	return row.Identity, CheckLedgerVersion(row.Version.Int64)
}

// CheckInbox checks the version of the inbox's table.
func CheckInbox(ctx context.Context, db *sqlx.DB, in schema.Name) error {
	var version sql.NullInt64
	err := db.GetContext(ctx, &version, in.In(`SELECT max(version_id) FROM bridge_inbox_version`))
	if err != nil {
		return err
	}
	return CheckInboxVersion(version.Int64)
}

// CheckLedgerVersion returns an error if this release cannot work with this version of the ledger,
// 0 being none.
func CheckLedgerVersion(found int64) error { return checkVersion("ledger", found, ledgerVersion) }

// CheckInboxVersion does the same for the inbox.
func CheckInboxVersion(found int64) error { return checkVersion("inbox", found, inboxVersion) }

func checkVersion(part string, found, known int64) error {
	fix := "call migrate.Ledger"
	if part == "inbox" {
		fix = "call migrate.Inbox"
	}
	works := fmt.Sprintf("the %s is of version %d, this release works with %d and %d", part, found, known, known+ahead)
	switch {
	case found > known+ahead:
		return fmt.Errorf("%w: %w: %s", bridge.ErrNoSchema, bridge.ErrLaterSchema, works)
	case found < known:
		return fmt.Errorf("%w: %s: %s", bridge.ErrNoSchema, works, fix)
	}
	return nil
}

// OtherLedger returns the error of a statement that has not found the identity.
func OtherLedger(identity uuid.UUID) error {
	return fmt.Errorf("%w: not %s", bridge.ErrOtherLedger, identity)
}

// ExpectChanged returns OtherLedger unless the statement has changed n rows, which it does if it
// has found the identity.
func ExpectChanged[N int | int64](changed N, n int, identity uuid.UUID) error {
	switch int(changed) {
	case n:
		return nil
	case 0:
		return OtherLedger(identity)
	default: // SQL Server also counts the rows that a trigger changes
		return fmt.Errorf("%w; or a trigger of the table is the cause: %d rows are counted, must be %d", OtherLedger(identity), changed, n)
	}
}

// Changed returns how many rows a statement has changed.
func Changed(result sql.Result, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	return int(n), err
}

// NotNil returns message as a parameter: drivers send nil as NULL.
func NotNil(message []byte) []byte {
	if message == nil {
		return []byte{}
	}
	return message
}

// CheckClaim returns an error if keys cannot be claimed: see driver.Inbox.
func CheckClaim(consumer string, keys []string) error {
	if err := CheckKeys(consumer, keys); err != nil {
		return err
	}
	for n := 1; n < len(keys); n++ {
		if keys[n-1] >= keys[n] {
			return fmt.Errorf("keys must ascend: %q, then %q", keys[n-1], keys[n])
		}
	}
	return nil
}

// claimParts is the number of parts into which ClaimParts splits keys.
const claimParts = 5

// ClaimParts claims keys on a server whose INSERT fails as a whole if one of its keys is claimed,
// and leaves the transaction usable. insert inserts up to most keys, or reports that one is
// claimed. Then fewer of those keys are inserted at a time.
func ClaimParts(keys []string, most int, insert func(keys []string) (duplicate bool, err error)) (fresh []string, err error) {
	for part := range slices.Chunk(keys, most) {
		duplicate, err := insert(part)
		switch {
		case err != nil:
			return nil, err
		case !duplicate:
			fresh = append(fresh, part...)
		case len(part) > 1:
			some, err := ClaimParts(part, (len(part)+claimParts-1)/claimParts, insert)
			if err != nil {
				return nil, err
			}
			fresh = append(fresh, some...)
		}
	}
	return fresh, nil
}

// ReadClaimed reads the keys claimed by a statement, and returns them in ascending order.
func ReadClaimed(ctx context.Context, tx bridge.Tx, statement string, args ...any) (fresh []string, err error) {
	err = query(ctx, tx, statement, args, func(rows bridge.Rows) error {
		var key string
		err := rows.Scan(&key)
		fresh = append(fresh, key)
		return err
	})
	slices.Sort(fresh)
	return fresh, err
}

// CheckKey returns an error if some inbox cannot store consumer or key.
func CheckKey(consumer, key string) error {
	if err := CheckConsumer(consumer); err != nil {
		return err
	}
	return checkText("key", key)
}

// CheckKeys does the same for several keys.
func CheckKeys(consumer string, keys []string) error {
	for _, key := range keys {
		if err := CheckKey(consumer, key); err != nil {
			return err
		}
	}
	return nil
}

// CheckConsumer does the same for a consumer alone.
func CheckConsumer(consumer string) error { return checkText("consumer", consumer) }

// CheckName does the same for a consumer and the name of a mark.
func CheckName(consumer, name string) error {
	if err := CheckConsumer(consumer); err != nil {
		return err
	}
	return checkText("name", name)
}

// CheckMark does the same for a mark.
func CheckMark(mark string) error { return checkText("mark", mark) }

// checkText refuses a text that some database cannot store or distinguish from another. PostgreSQL
// stores no NUL; SQL Server compares bytes as if NULs followed the shorter text, so that "k\x00"
// would be a duplicate of "k".
func checkText(what, text string) error {
	if text == "" || len(text) > maxKey {
		return fmt.Errorf("%s is %d bytes long, must be 1 to %d", what, len(text), maxKey)
	}
	if strings.ContainsRune(text, 0) {
		return fmt.Errorf("%s %q contains a NUL byte", what, text)
	}
	return nil
}
