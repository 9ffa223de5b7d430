package tds

import (
	"errors"
	"fmt"
	"strings"
)

// A sqlError is an error of a statement, as the server reports it.
type sqlError struct {
	number int32
	class  byte
	text   string
}

func (e *sqlError) Error() string { return fmt.Sprintf("%s (%d)", e.text, e.number) }

var (
	errNoPermission = &sqlError{297, 16, "The user does not have permission to perform this action."}
	errNotAllowed   = &sqlError{371, 16, "The user does not have permission to perform this action on a performance view."} // the number is recorded, the text is not
	errNoViewState  = &sqlError{300, 14, viewServerState + " permission was denied on object 'server', database 'master'."}
	errReadPast     = &sqlError{650, 16, "You can only specify the READPAST lock in the READ COMMITTED or REPEATABLE READ isolation levels."}
	errNoRowLocks   = &sqlError{651, 16, "Cannot use the ROW granularity hint on the table because locking at the specified granularity is inhibited."}
	errDeadlock     = &sqlError{1205, 13, "Transaction was deadlocked on lock resources with another process and has been chosen as the deadlock victim. Rerun the transaction."}
	errLockTimeout  = &sqlError{lockTimeout, 16, "Lock request time out period exceeded."}
	errNoSchema     = &sqlError{2760, 16, "The specified schema name does not exist or you do not have permission to use it."}
	errSetOptions   = &sqlError{1934, 16, "The statement failed because the following SET options have incorrect settings: 'QUOTED_IDENTIFIER'."}
	errReadOnly     = &sqlError{3906, 16, "Failed to update database because the database is read-only."}
	errResume       = &sqlError{3971, 16, "The server failed to resume the transaction."}
	errDescriptor   = &sqlError{3989, 16, "New request is not allowed to start because it should come with valid transaction descriptor."}
	errNoCommit     = &sqlError{3902, 16, "The COMMIT TRANSACTION request has no corresponding BEGIN TRANSACTION."}
	errNoRollback   = &sqlError{3903, 16, "The ROLLBACK TRANSACTION request has no corresponding BEGIN TRANSACTION."}
	errNoSavepoint  = &sqlError{6401, 16, "Cannot roll back: no transaction or savepoint of that name was found."}
	errLogin        = &sqlError{18456, 14, "Login failed."}
	errNoPlan       = &sqlError{8622, 16, "Query processor could not produce a query plan because of the hints defined in this query."}
	errBusy         = &sqlError{40501, 20, "The service is currently busy. Retry the request after 10 seconds."}
	errDisabled     = &sqlError{315, 16, "Index on the table (specified in the FROM clause) is disabled or resides in a filegroup which is not online."}
	errNoIndex      = &sqlError{308, 16, "Index on the table (specified in the FROM clause) does not exist."}
	errCannotOpen   = &sqlError{4060, 11, "Cannot open database requested by the login. The login failed."}
	errNoDatabase   = &sqlError{18456, 14, "Login failed for user."} // preceded by errCannotOpen
	errLevelUnknown = &sqlError{50000, 16, "the stand-in does not know this isolation level"}
)

const (
	missingObject = 208
	lockTimeout   = 1222
	babelfish     = 33557097 // number of Babelfish's own errors
)

// precededBy maps an error to the error that is reported before it.
var precededBy = map[*sqlError]*sqlError{errNoPermission: errNoViewState, errNoDatabase: errCannotOpen}

// These errors end the request; the client does not see them.
var (
	errInterrupted = errors.New("interrupted")
	errDropped     = errors.New("connection dropped")
)

func duplicate(t *table) error {
	return &sqlError{2627, 14, "Violation of PRIMARY KEY constraint. Cannot insert duplicate key in object 'dbo." + t.name + "'."}
}

// onBabelfish returns an error in the form of Babelfish 4.3: measured.
func onBabelfish(said *sqlError) *sqlError {
	switch said.number {
	case lockTimeout:
		return &sqlError{babelfish, 16, "canceling statement due to lock timeout"}
	case missingObject:
		return &sqlError{babelfish, 16, `relation "` + strings.Trim(strings.TrimPrefix(said.text, "Invalid object name "), "'.") + `" does not exist`}
	}
	return said
}

func noObject(name string) error {
	return &sqlError{missingObject, 16, "Invalid object name '" + name + "'."}
}

func denied(right, name string) error {
	return &sqlError{229, 14, "The " + right + " permission was denied on the object '" + name + "', schema 'dbo'."}
}

func exists(name string) error {
	return &sqlError{2714, 16, "There is already an object named '" + name + "' in the database."}
}

// unknown is the error for any request outside the model.
func unknown(what, text string) error {
	return &sqlError{50000, 16, "the stand-in does not know this " + what + ": " + text}
}
