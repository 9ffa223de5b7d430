package postgres

import (
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// With synchronous replication a commit becomes visible to others when the standby has it, with one
// exception: if something ends the committing session's wait (its client's context, a cancellation,
// a restart of the server), the commit stays and becomes visible, and a failover undoes it. So a
// row that was found counts as committed once a later commit of the bridge's own has waited for the
// standby: the standby receives the log in its order.

// replicate returns nil once the standby, if commits wait for one, has all commits seen on this
// instance before the call. Concurrent calls share a write.
func (l *Ledger) replicate(ctx context.Context, on instance) error {
	if !on.Waits {
		return nil
	}
	from, err := l.flush.Run(ctx, func() (driver.Instance, error) {
		var i instance
		err := l.db.GetContext(ctx, &i, emit)
		return i.name(), err
	})
	if err != nil {
		return fmt.Errorf("wait until the synchronous standby has the row: is a standby of synchronous_standby_names connected? %w", err)
	}
	if from != on.name() {
		return fmt.Errorf("%w: %s has the row, %s has waited for its standby", bridge.ErrOtherInstance, on.name(), from)
	}
	return nil
}

// committedOn returns the outcome of a settle that has found the row. It ends the settle's
// transaction.
func (l *Ledger) committedOn(ctx context.Context, tx *sqlx.Tx, on instance) (driver.Outcome, driver.Instance, error) {
	_ = tx.Rollback() // returns the connection before another is needed
	if err := l.replicate(ctx, on); err != nil {
		return driver.StillOpen, "", err
	}
	return driver.Committed, on.name(), nil
}
