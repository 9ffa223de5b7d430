package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// The SQLSTATEs that the bridge handles.
const (
	uniqueViolation   = "23505"
	undefinedTable    = "42P01"
	undefinedFunction = "42883"
	undefinedColumn   = "42703"
	readOnly          = "25006"
	missingRight      = "42501"
	outOfMemory       = "53200" // of the lock table
	tooManySessions   = "53300" // of the server, the database or the role
	lockNotAvailable  = "55P03" // lock_timeout
	queryCanceled     = "57014" // statement_timeout, unless the bridge cancelled
)

// sqlState returns the code of a server's error, or "". Both pgx and lib/pq have the method.
func sqlState(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

// Transient implements driver.Transactions. It is true of the classes connection exception, transaction
// rollback (except 40002) and insufficient resources, of lock_not_available, and of the states of a
// server that stops.
func (*Inbox) Transient(err error) bool {
	const integrityViolation, serverStops = "40002", "57P"
	state := sqlState(err)
	switch {
	case len(state) != 5 || state == integrityViolation:
		return false
	case state == lockNotAvailable || strings.HasPrefix(state, serverStops):
		return true
	}
	return slices.Contains([]string{"08", "40", "53"}, state[:2])
}

// waitEnded reports whether a time-out of the server ended a wait.
func waitEnded(err error) bool {
	state := sqlState(err)
	return state == lockNotAvailable || state == queryCanceled
}

// classifyIn returns classify for tables in a schema.
func classifyIn(in schema.Name) func(error) error {
	return func(err error) error { return classify(in, err) }
}

// classify adds the bridge's error, with the fix, to the driver's error.
func classify(in schema.Name, err error) error {
	switch sqlState(err) {
	case uniqueViolation:
		return fmt.Errorf("%w: %w", bridge.ErrDuplicateID, err)
	case undefinedTable, undefinedColumn:
		return fmt.Errorf("%w: %s: %w", bridge.ErrNoSchema, in.Fix("search_path"), err)
	case undefinedFunction:
		return fmt.Errorf("%w: the ledger's functions are missing, as after a dump of the tables alone: run the CREATE FUNCTION statements that bridgectl migrate print shows: %w", bridge.ErrNoSchema, err)
	case readOnly: // on a standby every transaction is read-only
		return fmt.Errorf("%w: %w", bridge.ErrReadOnly, err)
	case missingRight:
		return fmt.Errorf("%w: grant the login the rights of its role, which bridgectl grants prints; bridgectl doctor names the rights that a verifier lacks", err)
	case tooManySessions:
		return fmt.Errorf("%w: %w", driver.ErrNoConnection, err)
	case outOfMemory:
		return fmt.Errorf("%w: raise max_locks_per_transaction, or send fewer messages in one transaction", err)
	}
	return err
}
