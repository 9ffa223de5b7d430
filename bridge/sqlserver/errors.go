package sqlserver

import (
	"fmt"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/mssql"
)

// The error numbers that mean something to us.
const (
	noObject        = 208
	denied          = 229
	columnDenied    = 230
	uniqueIndex     = 2601
	primaryKey      = 2627
	readOnlyReplica = 3906
)

func isDuplicate(err error) bool {
	return mssql.Number(err) == primaryKey || mssql.Number(err) == uniqueIndex
}

// classify adds to the driver's error the answer to what it means for the bridge.
// needed are the rights without which the statement is denied.
func classify(err error, needed string) error {
	switch mssql.Number(err) {
	case primaryKey, uniqueIndex:
		return fmt.Errorf("%w: %w", bridge.ErrDuplicateID, err)
	case noObject:
		return fmt.Errorf("%w: call migrate.Ledger or migrate.Inbox, and see that the login's default schema is the same everywhere: %w", bridge.ErrNoSchema, err)
	case readOnlyReplica:
		return fmt.Errorf("%w: %w", bridge.ErrNotPrimary, err)
	case denied, columnDenied:
		return fmt.Errorf("the login lacks a right, needed here: GRANT %s: %w", needed, err)
	}
	return err
}
