package mysql

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// The errors that the bridge handles, by number.
const (
	noDatabase         = 1046
	unknownColumn      = 1054
	duplicateKey       = 1062
	syntaxError        = 1064
	unknownTable       = 1109
	missingTableRight  = 1142
	missingColumnRight = 1143
	noSuchTable        = 1146
	safeUpdates        = 1175 // from the setting sql_safe_updates, on MariaDB
	noSuchIndex        = 1176 // also for an index that no statement may use
	lockWaitTimeout    = 1205
	deadlock           = 1213
	missingRight       = 1227
	readOnlyOption     = 1290
	noSavepoint        = 1305
	readOnlyMode       = 1836
	readOnlyTransact   = 1792
	changedSince       = 1020 // MariaDB, under innodb_snapshot_isolation
	tooManySessions    = 1040
	tooManyOfUser      = 1203 // max_user_connections
	tooMuchOfUser      = 1226 // MAX_USER_CONNECTIONS of the account
	serverStops        = 1053
	sessionKilled      = 1927 // MariaDB
	sessionWasKilled   = 3169 // MySQL
	tableFull          = 1114 // also for a full disk
	statementTime      = 1969 // MariaDB's max_statement_time
	executionTime      = 3024 // MySQL's max_execution_time
)

// errorNumber returns the number of a server's error, or 0. The driver's error has it in a field and
// no method that returns it. To name the driver's type would mean to import, and so to register, the
// driver: so the field is found by its name.
func errorNumber(err error) uint64 {
	for ; err != nil; err = errors.Unwrap(err) {
		value := reflect.Indirect(reflect.ValueOf(err))
		if value.Kind() != reflect.Struct {
			continue
		}
		field, ok := value.Type().FieldByName("Number")
		if ok && len(field.Index) == 1 && value.Field(field.Index[0]).CanUint() {
			return value.Field(field.Index[0]).Uint()
		}
	}
	return 0
}

// Transient implements driver.Transactions.
func (*Inbox) Transient(err error) bool {
	switch errorNumber(err) {
	case lockWaitTimeout, deadlock, changedSince, tooManySessions, tooManyOfUser, tooMuchOfUser, serverStops, sessionKilled, sessionWasKilled, tableFull:
		return true
	}
	return false
}

// waitEnded reports whether a time-out of the server ended a wait.
func waitEnded(err error) bool {
	n := errorNumber(err)
	return n == lockWaitTimeout || n == statementTime || n == executionTime
}

// classify adds the bridge's error, with the fix, to the driver's error.
func classify(err error) error {
	switch errorNumber(err) {
	case duplicateKey:
		return fmt.Errorf("%w: %w", bridge.ErrDuplicateID, err)
	case noSuchTable, unknownColumn:
		return fmt.Errorf("%w: call migrate.Ledger or migrate.Inbox: %w", bridge.ErrNoSchema, err)
	case noDatabase:
		return fmt.Errorf("%w: the address must name a database: %w", bridge.ErrNoSchema, err)
	case noSuchIndex:
		return fmt.Errorf("the index that the statements need is missing, IGNORED or INVISIBLE: restore it, or open the table again: %w", err)
	case safeUpdates:
		return fmt.Errorf("sql_safe_updates refuses a statement that joins the table by its key: switch it off, for example with sql_safe_updates=0 in the address: %w", err)
	case readOnlyOption, readOnlyMode:
		return fmt.Errorf("%w: %w", bridge.ErrNotPrimary, err)
	case tooManySessions, tooManyOfUser, tooMuchOfUser:
		return fmt.Errorf("%w: %w", driver.ErrNoConnection, err)
	case readOnlyTransact:
		return fmt.Errorf("%w: %w", bridge.ErrReadOnly, err)
	}
	return err
}
