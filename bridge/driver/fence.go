package driver

import (
	"context"

	"github.com/twoqueue/twoqueue/bridge"
)

// A Fence notices that a transaction has ended before its COMMIT, so that later statements were
// committed one by one. MySQL and MariaDB end a transaction so at a deadlock, and at a CREATE TABLE
// and its like; the COMMIT then succeeds. On the other databases the COMMIT fails, and both methods
// do nothing.
type Fence interface {
	// Enter prepares a transaction that has just begun, before its first statement.
	Enter(ctx context.Context, tx bridge.Tx) error

	// Leave checks the same transaction, after the caller's last statement and before the COMMIT.
	// If the transaction has ended since Enter, the error wraps bridge.ErrTxEnded.
	Leave(ctx context.Context, tx bridge.Tx) error
}
