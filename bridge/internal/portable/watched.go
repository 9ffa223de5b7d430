package portable

import (
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// Watched holds the parts of a ledger that the inspector of its database, a package of its own,
// needs beside driver.Ledger. The fields are the fields of Verbs.
type Watched struct {
	DB             *sqlx.DB
	Schema         schema.Name
	Settle         Settle
	Table, Settles string
	Versions       func() bool
	Classify       func(error) error
}

// WatchedOf returns these parts of l.
func WatchedOf(l *Ledger) Watched {
	classify := func(err error) error { return l.verbs.Classify(err, Settling) }
	return Watched{DB: l.db, Schema: l.verbs.Schema, Settle: l.verbs.Settle, Table: l.verbs.Table, Settles: l.verbs.Settles, Versions: l.verbs.Versions, Classify: classify}
}
