package migrate

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"strings"

	"github.com/pressly/goose/v3/database"

	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// Print writes the statements that update a part from a version to this release's, for an
// administrator who runs them by hand. Version 0 is a database without the part's tables. Ledger
// and Inbox run the same statements and record the version in the same way, so a later release
// continues from there. The script may run more than once: it skips recorded versions. Each version
// is a transaction, except on MySQL, which has none for tables. On SQL Server the GO is for sqlcmd
// and the like. A program that runs the script must stop at an error (sqlcmd -b -x, sqlite3 -bail).
func Print(w io.Writer, dialect Dialect, part Part, from int64) error {
	return Schema("").Print(w, dialect, part, from)
}

func printScript(w io.Writer, dialect Dialect, part Part, from int64, in schema.Name) error {
	all, err := migrations(dialect, part)
	if err != nil {
		return err
	}
	wanted := all[len(all)-1].version
	if from < 0 || from > wanted {
		return fmt.Errorf("print the migrations of the %s: there is no version %d, this release makes %d", part, from, wanted)
	}
	store, err := database.NewStore(gooseDialect[dialect], part.versions())
	if err != nil {
		return fmt.Errorf("print the migrations of the %s: %w", part, err)
	}
	// A strings.Builder accepts everything, so nothing below fails.
	script := &script{dialect: dialect, versions: part.versions(), tag: "$bridge$"}
	for strings.Contains(in.Quoted(), script.tag) { // the tag in the name would end the block
		script.tag = "$bridge_" + script.tag[1:]
	}
	fmt.Fprintf(script, "-- The %s of twoqueue for %s: from version %d to %d. It may run more than once.\n", part, dialect, from, wanted)
	if in.IsSet() {
		fmt.Fprintf(script, "-- The schema must exist: CREATE SCHEMA %s\n", in.Quoted())
	}
	switch dialect {
	case SQLServer:
		script.WriteString("-- Run it by sqlcmd -b -x: without -b, sqlcmd goes on after an error.\n")
	case MySQL:
		fmt.Fprintf(script, "-- A statement may wait for open transactions, and other sessions wait behind it. It fails after %d s: run the script again.\nSET SESSION lock_wait_timeout = %[1]d;\n", mysqlTableWait)
	case SQLite:
		script.WriteString("-- Run it by sqlite3 -bail: without -bail, sqlite3 goes on after an error.\n")
	}
	if from == 0 {
		script.WriteString("\n-- The version of the tables.\n")
		script.makeVersions(store)
	}
	for _, m := range all {
		if m.version <= from {
			continue
		}
		fmt.Fprintf(script, "\n-- Version %d (%s).\n", m.version, m.name)
		script.version(m.version, m.up())
	}
	if _, err := io.WriteString(w, in.In(script.String())); err != nil {
		return fmt.Errorf("print the migrations of the %s: %w", part, err)
	}
	return nil
}

// script is a database that writes statements down in place of running them.
type script struct {
	strings.Builder
	dialect  Dialect
	versions string // the table of versions
	tag      string // begins and ends a block on PostgreSQL
}

// makeVersions writes the creation of the table of versions, with version 0, which goose expects.
func (s *script) makeVersions(store database.Store) {
	begin, end := "BEGIN;\n", "COMMIT;\n"
	switch s.dialect {
	case MySQL:
		begin, end = "", ""
	case SQLServer:
		begin, end = tsqlBegin, tsqlEnd
	}
	s.WriteString(begin)
	_ = store.CreateVersionTable(context.Background(), s)
	s.note(0)
	s.WriteString(end)
}

// version writes the statements of a version, which run unless the version is noted. SQLite and
// MySQL have no condition for several statements; there each statement is repeatable.
func (s *script) version(version int64, text string) {
	begin, end := "", ""
	switch s.dialect {
	case PostgreSQL: // it runs the block in one transaction
		begin, end = "DO "+s.tag+" BEGIN\nIF NOT EXISTS ("+s.noted(version)+") THEN\n", "END IF;\nEND "+s.tag+";\n"
	case SQLServer:
		begin, end = tsqlBegin+"IF NOT EXISTS ("+s.noted(version)+") BEGIN\n", "END;\n"+tsqlEnd
	case SQLite:
		begin, end = "BEGIN;\n", "COMMIT;\n"
	}
	fmt.Fprintf(s, "%s%s\n\n", begin, text)
	s.note(version)
	s.WriteString(end)
}

const (
	// sqlcmd turns QUOTED_IDENTIFIER off, and a filtered index needs it.
	tsqlBegin = "SET QUOTED_IDENTIFIER ON;\nSET XACT_ABORT ON;\nBEGIN TRANSACTION;\n"
	tsqlEnd   = "COMMIT;\nGO\n"
)

func (s *script) noted(version int64) string {
	return fmt.Sprintf("SELECT * FROM %s WHERE version_id = %d", s.versions, version)
}

// note writes goose's statements for noting a version, unless the version is noted.
func (s *script) note(version int64) {
	truth := map[bool]string{true: "true", false: "1"}[s.dialect == PostgreSQL]
	from := ""
	if s.dialect == MySQL {
		from = " FROM DUAL"
	}
	fmt.Fprintf(s, "INSERT INTO %s (version_id, is_applied) SELECT %d, %s%s WHERE NOT EXISTS (%s);\n", s.versions, version, truth, from, s.noted(version))
}

// ExecContext writes goose's statement that makes the table of versions.
func (s *script) ExecContext(_ context.Context, query string, _ ...any) (sql.Result, error) {
	query = strings.ReplaceAll(query, "\n\t", "\n")
	if s.dialect == SQLServer {
		fmt.Fprintf(s, "IF OBJECT_ID('%s') IS NULL BEGIN\n%s;\nEND;\n", s.versions, query)
		return nil, nil
	}
	s.WriteString(strings.Replace(query, "CREATE TABLE ", "CREATE TABLE IF NOT EXISTS ", 1) + ";\n")
	return nil, nil
}

// QueryContext is not called: goose reads nothing when it notes a version.
func (s *script) QueryContext(context.Context, string, ...any) (*sql.Rows, error) {
	return nil, sql.ErrConnDone
}

// QueryRowContext is not called either.
func (s *script) QueryRowContext(context.Context, string, ...any) *sql.Row { return nil }
