package driver

import (
	"context"

	"github.com/twoqueue/twoqueue/bridge"
)

// A Fence notices that a transaction has ended before its COMMIT, so that later statements were
// committed one by one. MySQL and MariaDB end a transaction so at a deadlock, and at a CREATE TABLE
// and its like; the COMMIT then succeeds. SQLite ends one at a full disk, a cancelled statement or
// ON CONFLICT ROLLBACK; the COMMIT then fails, too late for a Record before it. On the other
// databases later statements and the COMMIT fail, and both methods do nothing.
type Fence interface {
	// Enter prepares a transaction that has just begun, before its first statement.
	Enter(ctx context.Context, tx bridge.Tx) error

	// Leave checks the same transaction, after the caller's last statement and before the COMMIT.
	// If the transaction has ended since Enter, the error wraps bridge.ErrTxEnded.
	Leave(ctx context.Context, tx bridge.Tx) error
}

// Transactions is the part of an inbox that each receiver uses for its transactions.
type Transactions interface {
	Fence

	// Transient reports whether err, of any statement in this database, means that the same work
	// may succeed later without a change: a deadlock, a failed serialization, a wait for a lock
	// ended by the server, a lost connection, a server that stops or lacks a resource.
	Transient(err error) bool
}
