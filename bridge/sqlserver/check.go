package sqlserver

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// keyType is the type of bridge_ledger.id.
const keyType = "uniqueidentifier"

// readIdentity returns the ledger's identity if the database meets all requirements.
func (l *Ledger) readIdentity(ctx context.Context) (uuid.UUID, error) {
	var rows []struct {
		Identity      []byte
		Version       sql.NullInt64
		Updateability sql.NullString
		release
		Compatibility int
		Durability    sql.NullString
		KeyType       sql.NullString `db:"key_type"`
		UniqueKeys    int            `db:"unique_keys"`
	}
	err := try(ctx, func(ctx context.Context) error {
		rows = nil
		return l.db.SelectContext(ctx, &rows, l.schema.In(state))
	})
	if err != nil {
		return uuid.Nil, err
	}
	if len(rows) != 1 {
		return uuid.Nil, fmt.Errorf("sys.databases has %d rows of the current database, must have 1", len(rows))
	}
	s := rows[0]
	if s.Identity == nil {
		return uuid.Nil, fmt.Errorf("%w: bridge_identity is empty; drop the bridge's tables and call migrate.Ledger", bridge.ErrNoSchema)
	}
	if err := s.check(); err != nil {
		return uuid.Nil, err
	}
	if err := portable.CheckLedgerVersion(s.Version.Int64); err != nil {
		return uuid.Nil, err
	}
	switch {
	case s.Updateability.String != readWrite:
		return uuid.Nil, fmt.Errorf("%w: the database is %q; connect to the primary, without ApplicationIntent=ReadOnly", bridge.ErrNotPrimary, s.Updateability.String)
	case s.Compatibility < minCompatibility:
		return uuid.Nil, fmt.Errorf("the database's compatibility level is %d, must be at least %d: ALTER DATABASE CURRENT SET COMPATIBILITY_LEVEL", s.Compatibility, minCompatibility)
	case s.Durability.String != durable && !s.Babelfish: // Babelfish does not show it
		return uuid.Nil, fmt.Errorf("delayed durability is %s, must be %s, or a crash could undo transactions of forwarded messages: ALTER DATABASE CURRENT SET DELAYED_DURABILITY = %s", s.Durability.String, durable, durable)
	case !s.KeyType.Valid:
		return uuid.Nil, fmt.Errorf("%w: there is no bridge_ledger with an id, or the login has no right on it: call migrate.Ledger, or GRANT SELECT ON %s", bridge.ErrNoSchema, l.schema.In("bridge_ledger"))
	case s.KeyType.String != keyType:
		return uuid.Nil, fmt.Errorf("%w: bridge_ledger.id is %q, must be %s, as migrate.Ledger makes it", bridge.ErrNoSchema, s.KeyType.String, keyType)
	case s.UniqueKeys == 0:
		return uuid.Nil, fmt.Errorf("%w: bridge_ledger.id has no unique key, as migrate.Ledger makes it", bridge.ErrNoSchema)
	}
	return readID(s.Identity)
}
