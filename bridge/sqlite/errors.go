package sqlite

import (
	"errors"
	"fmt"
	"strings"

	"github.com/twoqueue/twoqueue/bridge"
)

// The result codes that the bridge handles; the low byte is the primary code.
const (
	genericError = 1
	busy         = 5
	locked       = 6
	ioError      = 10
	full         = 13
	readOnly     = 8
	primaryKey   = 1555 // SQLITE_CONSTRAINT_PRIMARYKEY
	unique       = 2067 // SQLITE_CONSTRAINT_UNIQUE
)

// code returns SQLite's extended result code, or 0 if err is not SQLite's.
func code(err error) int {
	var e interface{ Code() int }
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}

func isBusy(err error) bool { return code(err)&0xff == busy }

// Transient implements driver.Transactions.
func (*Inbox) Transient(err error) bool {
	switch code(err) & 0xff {
	case busy, locked, ioError, full:
		return true
	}
	return false
}

// classify adds the bridge's error, with the fix, to the driver's error.
func classify(err error) error {
	c := code(err)
	switch {
	case c == primaryKey || c == unique:
		return fmt.Errorf("%w: %w", bridge.ErrDuplicateID, err)
	case c&0xff == readOnly:
		return fmt.Errorf("%w: %w", bridge.ErrNotPrimary, err)
	case c == genericError && strings.Contains(err.Error(), "no such "):
		return fmt.Errorf("%w: call migrate.Ledger or migrate.Inbox: %w", bridge.ErrNoSchema, err)
	}
	return err
}
