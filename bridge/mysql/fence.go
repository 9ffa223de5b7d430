package mysql

import (
	"context"
	"fmt"

	"github.com/twoqueue/twoqueue/bridge"
)

// fence is a savepoint at the beginning of a transaction. It disappears with the transaction, and
// by no other statement of the caller: the first savepoint outlives a rollback to every later one.
// (A look at the claim or the ledger's row would cost one round trip less. But a sender records
// after the caller's statements, and a claim that is found may be another receiver's.)
type fence struct{}

const (
	enter = `SAVEPOINT bridge_begin`
	leave = `RELEASE SAVEPOINT bridge_begin`
)

// Enter implements driver.Fence.
func (fence) Enter(ctx context.Context, tx bridge.Tx) error {
	if _, err := tx.Exec(ctx, enter); err != nil {
		return fmt.Errorf("set savepoint: %w", classify(err))
	}
	return nil
}

// Leave implements driver.Fence.
func (fence) Leave(ctx context.Context, tx bridge.Tx) error {
	_, err := tx.Exec(ctx, leave)
	switch {
	case err == nil:
		return nil
	case errorNumber(err) == noSavepoint:
		return fmt.Errorf("%w: a deadlock whose error was ignored has rolled it back, or a statement such as CREATE TABLE has committed it; later statements are committed one by one", bridge.ErrTxEnded)
	}
	return fmt.Errorf("release savepoint: %w", classify(err))
}
