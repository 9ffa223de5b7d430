package database

import (
	"context"
	"fmt"
	"time"

	"github.com/twoqueue/twoqueue/bridge/migrate"
)

// A Schema is a variable that names the schema of the bridge's tables. If it is empty, the login's
// settings choose the schema. A database that it opens finds and creates the tables there.
type Schema string

// Check returns an error, which begins with the variable, if the database of the URL cannot have the
// tables in the schema.
func (s Schema) Check(variable, url string) error {
	dialect, ok := DialectOf(url)
	if s == "" || !ok {
		return nil
	}
	if err := migrate.Schema(s).Check(dialect); err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	return nil
}

// Open opens a database like the function Open, with this schema.
func (s Schema) Open(ctx context.Context, url string) (*Database, error) {
	return s.open(ctx, always(url), false, patience)
}

// OpenAnew opens a database like the function OpenAnew, with this schema.
func (s Schema) OpenAnew(ctx context.Context, read func() string) (*Database, error) {
	return s.open(ctx, read, false, patience)
}

// Await opens a database like the function Await, with this schema.
func (s Schema) Await(ctx context.Context, url string, tell func(missing error)) (*Database, error) {
	return await(ctx, startPatience, tell, func() (*Database, error) { return s.open(ctx, always(url), true, attemptPatience) })
}

func (s Schema) open(ctx context.Context, read func() string, create bool, patience time.Duration) (*Database, error) {
	if err := s.Check("open database", read()); err != nil {
		return nil, err
	}
	db, err := open(ctx, read, create, patience)
	if err != nil {
		return nil, err
	}
	db.schema = migrate.Schema(s)
	return db, nil
}

// In returns a statement with the schema before the names of the bridge's tables. Call Rebind first,
// since the schema's name may have a question mark.
func (d *Database) In(statement string) string { return d.schema.In(d.kind.dialect, statement) }

// Statements returns a function like In that also knows the command's own tables.
func (d *Database) Statements(tables ...string) func(statement string) string {
	return d.schema.Statements(d.kind.dialect, tables...)
}

// Usage returns the right on the schema that a login needs first, or "" (see migrate.Schema).
func (d *Database) Usage() string { return d.schema.Usage(d.kind.dialect) }
