package database

import (
	"context"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/migrate"
)

// DialectOf returns the kind of database that a URL names, or false if Open does not take the URL.
func DialectOf(url string) (migrate.Dialect, bool) {
	kind, ok := kinds[scheme(url)]
	return kind.dialect, ok
}

// Dialect returns the kind of the database.
func (d *Database) Dialect() migrate.Dialect { return d.kind.dialect }

// Version returns the version of a part's tables, 0 without tables, and the version that this
// release creates.
func (d *Database) Version(ctx context.Context, part migrate.Part) (there, wanted int64, err error) {
	return d.schema.Version(ctx, d.DB.DB, d.kind.dialect, part)
}

// NewIdentity calls migrate.Schema.NewIdentity with a random UUID, and returns the UUID too.
func (d *Database) NewIdentity(ctx context.Context) (identity uuid.UUID, deleted int64, err error) {
	if identity, err = uuid.NewRandom(); err != nil {
		return uuid.Nil, 0, err
	}
	deleted, err = d.schema.NewIdentity(ctx, d.DB.DB, d.kind.dialect, identity.String())
	return identity, deleted, err
}
