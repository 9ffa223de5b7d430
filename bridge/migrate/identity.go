package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// setIdentity sets the identity; ID stands for the UUID's canonical text.
var setIdentity = map[Dialect]string{
	PostgreSQL: `UPDATE bridge_identity SET identity = 'ID'`,
	SQLite:     `UPDATE bridge_identity SET identity = 'ID'`,
	MySQL:      `UPDATE bridge_identity SET identity = UNHEX(REPLACE('ID', '-', ''))`,
	SQLServer:  `UPDATE bridge_identity SET [identity] = 'ID'`,
}

// canonical is a UUID's canonical text.
var canonical = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// NewIdentity gives the ledger in db, a copy of another database, an identity of its own: a new
// UUID in its canonical text. In the same transaction it deletes the rows that carry a message, and
// returns how many: the original has them too, and a verifier on the copy would send them a second
// time. Call it before anything connects to the copy. Programs that have opened the ledger before
// get bridge.ErrOtherLedger. The tables must be of version 4 or later. If it fails, or the process
// dies, nothing has changed, or everything if the COMMIT was sent.
func NewIdentity(ctx context.Context, db *sql.DB, dialect Dialect, identity string) (deleted int64, err error) {
	return newIdentity(ctx, db, dialect, identity, schema.Name{})
}

func newIdentity(ctx context.Context, db *sql.DB, dialect Dialect, identity string, in schema.Name) (deleted int64, err error) {
	if !canonical.MatchString(identity) {
		return 0, fmt.Errorf("new identity: %q is not a UUID in its canonical text", identity)
	}
	switch there, _, err := version(ctx, db, dialect, LedgerPart, in); {
	case err != nil:
		return 0, fmt.Errorf("new identity: %w", err)
	case there < 4:
		return 0, fmt.Errorf("new identity: the ledger's tables are of version %d, must be 4 or later (0: there are none): migrate them first", there)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("new identity: begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	exec := func(right, statement string) (changed int64, err error) {
		result, err := tx.ExecContext(ctx, in.In(statement))
		if err != nil {
			return 0, fmt.Errorf("new identity (needs %s): %w", in.In(right), err)
		}
		return result.RowsAffected()
	}
	if deleted, err = exec("SELECT, DELETE ON bridge_ledger", `DELETE FROM bridge_ledger WHERE stage_at IS NOT NULL`); err != nil {
		return 0, err
	}
	switch changed, err := exec("UPDATE ON bridge_identity", strings.Replace(setIdentity[dialect], "ID", identity, 1)); {
	case err != nil:
		return 0, err
	case changed != 1:
		return 0, errors.New("new identity: bridge_identity is empty; drop the bridge's tables and call Ledger")
	}
	if err := tx.Commit(); err != nil {
		return 0, fmt.Errorf("new identity: commit: %w", err)
	}
	return deleted, nil
}
