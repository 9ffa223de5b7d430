package sqlserver

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/twoqueue/twoqueue/bridge"
)

// The error numbers that mean something to us.
const (
	noObject        = 208
	denied          = 229
	columnDenied    = 230
	noDatabaseState = 262 // VIEW DATABASE STATE
	noPermission    = 297
	noServerState   = 300 // VIEW SERVER STATE
	deadlockVictim  = 1205
	lockTimeout     = 1222
	uniqueIndex     = 2601
	primaryKey      = 2627
	readOnlyReplica = 3906
)

// Babelfish 4.3 has a number of its own for a lock time-out, which may stand for other
// errors as well.
const (
	babelfishError   = 33557097
	babelfishTimeout = "due to lock timeout"
)

// number returns the number of the server's error, or 0 if err is none. The
// driver's error has the method.
func number(err error) int32 {
	var e interface{ SQLErrorNumber() int32 }
	if !errors.As(err, &e) {
		return 0
	}
	if e.SQLErrorNumber() == babelfishError && strings.Contains(err.Error(), babelfishTimeout) {
		return lockTimeout
	}
	return e.SQLErrorNumber()
}

func isDuplicate(err error) bool { return number(err) == primaryKey || number(err) == uniqueIndex }

// classify adds to the driver's error the answer to what it means for the bridge.
// needed are the rights without which the statement is denied.
func classify(err error, needed string) error {
	switch number(err) {
	case primaryKey, uniqueIndex:
		return fmt.Errorf("%w: %w", bridge.ErrDuplicateID, err)
	case noObject:
		return fmt.Errorf("%w: call migrate.Ledger or migrate.Inbox, and see that the login's default schema is the same everywhere: %w", bridge.ErrNoSchema, err)
	case readOnlyReplica:
		return fmt.Errorf("%w: %w", bridge.ErrNotPrimary, err)
	case denied, columnDenied:
		return fmt.Errorf("the login lacks a right, needed here: GRANT %s: %w", needed, err)
	}
	return err
}

// attempts is how often a statement is tried that the server gives up to end a
// deadlock.
const attempts = 5

// try runs a statement of ours, which must be one that may run twice, under a
// context that never ends by a deadline: when a deadline passes the driver drops
// the connection, when a context is cancelled it tells the server and keeps it.
func try(ctx context.Context, run func(ctx context.Context) error) error {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	var err error
	for range attempts {
		if err = run(inner); number(err) != deadlockVictim {
			break
		}
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
