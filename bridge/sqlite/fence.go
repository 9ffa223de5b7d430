package sqlite

import (
	"context"
	"fmt"
	"strings"

	"github.com/twoqueue/twoqueue/bridge"
)

// fence is a savepoint at the beginning of a transaction. It disappears with the transaction, and
// by no other statement of the caller: the first savepoint outlives a rollback to every later one.
// The COMMIT of an ended transaction would fail too, but a sender records before it.
type fence struct{}

const (
	enter = `SAVEPOINT bridge_begin`
	leave = `RELEASE bridge_begin`
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
	case code(err) == genericError && strings.Contains(err.Error(), "no such savepoint"):
		return fmt.Errorf("%w: a statement whose error was ignored has rolled it back (a cancelled context, a full disk, ON CONFLICT ROLLBACK); later statements are committed one by one", bridge.ErrTxEnded)
	}
	return fmt.Errorf("release savepoint: %w", classify(err))
}
