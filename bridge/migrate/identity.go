package migrate

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
)

// setIdentity sets the identity; ID stands for the UUID's canonical text.
var setIdentity = map[Dialect]string{
	PostgreSQL: `UPDATE bridge_identity SET identity = 'ID'`,
	SQLite:     `UPDATE bridge_identity SET identity = 'ID'`,
	MySQL:      `UPDATE bridge_identity SET identity = UNHEX(REPLACE('ID', '-', ''))`,
	SQLServer:  `UPDATE bridge_identity SET [identity] = 'ID'`,
}

// NewIdentity gives the ledger in db, which is a copy of another database, an identity of its own,
// which it returns with the number of deleted messages. In the same transaction it deletes the rows that carry a message, and the parked
// messages: the original has them too, and a verifier on the copy would send them a second time. Call
// it before anything connects to the copy. Programs that have opened the ledger before get
// bridge.ErrOtherLedger. If the tables are missing, the error wraps bridge.ErrNoSchema. If it fails,
// or the process dies, nothing has changed, or everything if the COMMIT was sent.
func NewIdentity(ctx context.Context, db *sql.DB, dialect Dialect) (identity uuid.UUID, deleted int64, err error) {
	there, _, err := Version(ctx, db, dialect, LedgerPart)
	switch {
	case err != nil:
		return uuid.Nil, 0, err
	case there < 3:
		return uuid.Nil, 0, fmt.Errorf("new identity: %w: version %d of the ledger's tables, needs 3; migrate them first", bridge.ErrNoSchema, there)
	}
	identity, err = uuid.NewRandom()
	if err != nil {
		return uuid.Nil, 0, fmt.Errorf("new identity: %w", err)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return uuid.Nil, 0, fmt.Errorf("new identity: begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	exec := func(statement string) (changed int64, err error) {
		result, err := tx.ExecContext(ctx, statement)
		if err != nil {
			return 0, fmt.Errorf("new identity: %w", err)
		}
		return result.RowsAffected()
	}
	for _, statement := range []string{`DELETE FROM bridge_ledger WHERE stage_at IS NOT NULL`, `DELETE FROM bridge_parked`} {
		n, err := exec(statement)
		if err != nil {
			return uuid.Nil, 0, err
		}
		deleted += n
	}
	switch changed, err := exec(strings.Replace(setIdentity[dialect], "ID", identity.String(), 1)); {
	case err != nil:
		return uuid.Nil, 0, err
	case changed != 1:
		return uuid.Nil, 0, fmt.Errorf("new identity: %w: bridge_identity is empty; drop the bridge's tables and call Ledger", bridge.ErrNoSchema)
	}
	if err := tx.Commit(); err != nil {
		return uuid.Nil, 0, fmt.Errorf("new identity: commit: %w", err)
	}
	return identity, deleted, nil
}
