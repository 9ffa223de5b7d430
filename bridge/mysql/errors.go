package mysql

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/twoqueue/twoqueue/bridge"
)

// The errors that mean something to us, by number.
const (
	noDatabase         = 1046
	unknownColumn      = 1054
	duplicateKey       = 1062
	syntaxError        = 1064
	unknownTable       = 1109
	missingTableRight  = 1142
	missingColumnRight = 1143
	noSuchTable        = 1146
	noSuchIndex        = 1176 // also of an index that no statement may use
	lockWaitTimeout    = 1205
	deadlock           = 1213
	missingRight       = 1227
	readOnlyOption     = 1290
	readOnlyMode       = 1836
	readOnlyTransact   = 1792
	statementTime      = 1969 // MariaDB's max_statement_time
	executionTime      = 3024 // MySQL's max_execution_time
)

// number returns the number of a server's error, or 0. The driver's error has it
// in a field and no method that tells it, and to name the driver's type would be to
// import, and so to register, the driver: so the field is found by its name.
func number(err error) uint64 {
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

// waitEnded tells whether the server ended a wait by one of its time-outs.
func waitEnded(err error) bool {
	n := number(err)
	return n == lockWaitTimeout || n == statementTime || n == executionTime
}

// classify adds to the driver's error the answer to what it means for the bridge.
func classify(err error) error {
	switch number(err) {
	case duplicateKey:
		return fmt.Errorf("%w: %w", bridge.ErrDuplicateID, err)
	case noSuchTable, unknownColumn:
		return fmt.Errorf("%w: call migrate.Ledger or migrate.Inbox: %w", bridge.ErrNoSchema, err)
	case noDatabase:
		return fmt.Errorf("%w: the address must name a database: %w", bridge.ErrNoSchema, err)
	case noSuchIndex:
		return fmt.Errorf("the index that the statements are bound to is gone, or IGNORED or INVISIBLE: bring it back, or open the table anew: %w", err)
	case readOnlyOption, readOnlyMode, readOnlyTransact:
		return fmt.Errorf("%w: %w", bridge.ErrNotPrimary, err)
	}
	return err
}
