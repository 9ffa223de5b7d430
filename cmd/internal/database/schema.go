package database

import (
	"context"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/migrate"
)

// DialectOf is the kind of database that a URL names; false if none of those that
// Open takes.
func DialectOf(url string) (migrate.Dialect, bool) {
	kind, ok := kinds[scheme(url)]
	return kind.dialect, ok
}

// Dialect is the kind of database that it is.
func (d *Database) Dialect() migrate.Dialect { return d.kind.dialect }

// Version tells which version of a part's tables is there, 0 for none, and which one
// this release makes.
func (d *Database) Version(ctx context.Context, part migrate.Part) (there, wanted int64, err error) {
	return d.schema.Version(ctx, d.DB.DB, d.kind.dialect, part)
}

// NewIdentity does what migrate.NewIdentity does, with a random UUID.
func (d *Database) NewIdentity(ctx context.Context) (identity uuid.UUID, deleted int64, err error) {
	if identity, err = uuid.NewRandom(); err != nil {
		return uuid.Nil, 0, err
	}
	deleted, err = d.schema.NewIdentity(ctx, d.DB.DB, d.kind.dialect, identity.String())
	return identity, deleted, err
}
