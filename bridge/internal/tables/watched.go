package tables

import (
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// Watched is what the inspector of a database, which is a package of its own, knows of a
// ledger beside the verbs of driver.Ledger. The fields are those of Verbs.
type Watched struct {
	DB             *sqlx.DB
	Schema         schema.Name
	Settle         Settle
	Table, Settles string
	Classify       func(error) error
}

// WatchedOf returns what is known of l.
func WatchedOf(l *Ledger) Watched {
	classify := func(err error) error { return l.verbs.Classify(err, Settling) }
	return Watched{DB: l.db, Schema: l.verbs.Schema, Settle: l.verbs.Settle, Table: l.verbs.Table, Settles: l.verbs.Settles, Classify: classify}
}
