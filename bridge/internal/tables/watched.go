package tables

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// Watched is what the inspector of a database, which is a package of its own, knows of a
// ledger beside the verbs of driver.Ledger.
type Watched struct {
	DB *sqlx.DB
	// Table is the table that the ledger reads, as it stands in a statement.
	Table string
	// Settle is the Settle of driver.Ledger. Before it waits, it calls began with the session
	// that is going to.
	Settle func(ctx context.Context, id uuid.UUID, wait time.Duration, began func(session sqlx.QueryerContext) error) (driver.Outcome, error)
	// Settles is a part of the statement of a Settle that no other statement has. It is
	// empty where a Settle holds nothing that others wait for.
	Settles string
	// Classify adds to an error what it means for the bridge.
	Classify func(error) error
}

// Unwatched is the began of a Settle that nobody watches.
func Unwatched(sqlx.QueryerContext) error { return nil }
