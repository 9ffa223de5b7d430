package migrate

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"strings"

	"github.com/pressly/goose/v3/database"
)

// Print writes the statements that update a part from a version to this release's, for an
// administrator who runs them by hand. Version 0 is a database without the part's tables.
// Ledger and Inbox run the same statements and record the version in the same way, so a later
// release goes on from there. Each version is a transaction, except on MySQL, which has none
// for tables. On SQL Server the GO is for sqlcmd and the like, which must be told to stop at an
// error (sqlcmd -b -x).
func Print(w io.Writer, dialect Dialect, part Part, from int64) error {
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
	begin, commit := "BEGIN;\n", "COMMIT;\n"
	switch dialect {
	case MySQL:
		begin, commit = "", ""
	case SQLServer:
		begin, commit = "SET XACT_ABORT ON;\nBEGIN TRANSACTION;\n", "COMMIT;\nGO\n"
	}
	// A strings.Builder takes everything, so that nothing below fails.
	script := &script{dialect: dialect}
	fmt.Fprintf(script, "-- The %s of twoqueue for %s: from version %d to %d.\n", part, dialect, from, wanted)
	if dialect == SQLServer {
		script.WriteString("-- Run it by sqlcmd -b -x: without -b, sqlcmd goes on after an error.\n")
	}
	if from == 0 {
		script.WriteString("\n-- The version of the tables.\n" + begin)
		_ = store.CreateVersionTable(context.Background(), script)
		_ = store.Insert(context.Background(), script, database.InsertRequest{Version: 0})
		script.WriteString(commit)
	}
	for _, m := range all {
		if m.version <= from {
			continue
		}
		_, text, _ := strings.Cut(m.text, "-- +goose Up\n")
		fmt.Fprintf(script, "\n-- Version %d (%s).\n%s%s\n\n", m.version, m.name, begin, strings.TrimSpace(text))
		_ = store.Insert(context.Background(), script, database.InsertRequest{Version: m.version})
		script.WriteString(commit)
	}
	if _, err := io.WriteString(w, script.String()); err != nil {
		return fmt.Errorf("print the migrations of the %s: %w", part, err)
	}
	return nil
}

// script is a database that writes the statements down instead of running them.
type script struct {
	strings.Builder
	dialect Dialect
}

// ExecContext writes a statement with its parameters, which are goose's: a version and
// a truth.
func (s *script) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	for i, arg := range args {
		name := "?"
		switch s.dialect {
		case PostgreSQL:
			name = fmt.Sprintf("$%d", i+1)
		case SQLServer:
			name = fmt.Sprintf("@p%d", i+1)
		}
		literal := fmt.Sprint(arg)
		if truth, ok := arg.(bool); ok && s.dialect != PostgreSQL {
			literal = map[bool]string{true: "1", false: "0"}[truth]
		}
		query = strings.Replace(query, name, literal, 1)
	}
	s.WriteString(strings.ReplaceAll(query, "\n\t", "\n") + ";\n")
	return nil, nil
}

// QueryContext is not called: goose asks nothing when it notes a version.
func (s *script) QueryContext(context.Context, string, ...any) (*sql.Rows, error) {
	return nil, sql.ErrConnDone
}

// QueryRowContext is not called either.
func (s *script) QueryRowContext(context.Context, string, ...any) *sql.Row { return nil }
