package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/advice"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
)

// about puts the variable that names a server before an error from the first contact with it.
func about(variable string, err error) error { return fmt.Errorf("%s: %w", variable, err) }

// reasonOf returns the reason why ctx has ended, if that is a locked table, and otherwise err.
func reasonOf(ctx context.Context, err error) error {
	if locked := context.Cause(ctx); errors.Is(locked, database.ErrTableLocked) {
		return locked
	}
	return err
}

// fixes has bridgectl's own fixes for errors. They prevail over the fixes of package advice.
var fixes = []struct {
	err error
	fix string
}{
	{bridge.ErrLaterSchema, "run the bridgectl of the release that made the tables, or of a later one"},
	{bridge.ErrNoSchema, "name the right database, or create the tables with bridgectl migrate up"},
	{database.ErrTableLocked, "wait until its transaction ends, or end that session"},
	{errManagementLogin, "correct its user and password, and " + monitoringFix},
	{errManagementRights, monitoringFix},
	{errManagementAway, "check that the management plugin runs, and that host and port are right"},
}

// missingRight reports whether a database refuses the login a statement, by the drivers' codes.
func missingRight(err error) bool {
	var postgres interface{ SQLState() string }
	var sqlServer interface{ SQLErrorNumber() int32 }
	var mysql *mysqldriver.MySQLError
	switch {
	case errors.As(err, &postgres):
		return postgres.SQLState() == "42501"
	case errors.As(err, &sqlServer):
		return sqlServer.SQLErrorNumber() == 229 || sqlServer.SQLErrorNumber() == 230
	case errors.As(err, &mysql):
		return mysql.Number == 1142 || mysql.Number == 1143
	}
	return false
}

// failureLine returns an error and its fix in one line, for a command's answer.
func failureLine(err error) string { return advice.Line(explain(err).Error()) }

// failures has one line for each question of a command that a server has not answered. The command
// shows the other answers all the same.
type failures []string

func (f *failures) add(err error) {
	if line := failureLine(err); !slices.Contains(*f, line) {
		*f = append(*f, line)
	}
}

func (f failures) write(p *page) {
	for _, failure := range f {
		p.line("%s", "failed: "+failure)
	}
}

// exit returns the command's exit code as an error; nil if nothing has failed.
func (f failures) exit() error {
	if len(f) > 0 {
		return &exitError{exitFailed}
	}
	return nil
}

// explain appends the fix to an error.
func explain(err error) error { return advice.With(err, fixOf(err)) }

// fixOf returns the fix for an error; empty if none is known, or if the error's text has it.
func fixOf(err error) string {
	if secure := advice.TLS(err); secure != "" {
		return secure
	}
	for _, m := range fixes {
		if errors.Is(err, m.err) {
			return m.fix
		}
	}
	if missing(err) {
		return "create the queues with bridgectl topology declare, or name the right ones with BRIDGE_QUEUE"
	}
	_, fix := advice.Of(err)
	return fix
}
