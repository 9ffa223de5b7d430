package mysql

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// makeDurable returns nil once a crash of the server cannot undo the commits seen on it before the
// call. (Another server's log proves nothing about them.) InnoDB's log is sequential, and the
// commit of the bridge's own write waits until the log is on the disk, with all earlier commits in
// it. It waits for the replica too, which has then received all earlier commits. The same
// transaction deletes the row that it writes.
func (l *Ledger) makeDurable(ctx context.Context, on driver.Instance) error {
	from, err := l.flush.Run(ctx, func() (driver.Instance, error) {
		id := uuid.New()
		var i instance
		err := readCommitted(ctx, l.db, func(tx *sqlx.Tx) error {
			if err := tx.GetContext(ctx, &i, nameServer); err != nil {
				return err
			}
			inserted, err := portable.Changed(tx.ExecContext(ctx, l.statement(recordOne, digits(id))))
			if err == nil && inserted == 0 {
				err = portable.OtherLedger(l.Identity())
			}
			if err == nil {
				_, err = tx.ExecContext(ctx, l.statement(deletePlaceholder, digits(id)))
			}
			return err
		})
		return l.start.name(i), err
	})
	if err != nil {
		return fmt.Errorf("flush the server's log, to its disk and to a semi-synchronous replica if there is one: %w", err)
	}
	if from != on {
		return fmt.Errorf("%w: %s has the row, %s has flushed its log", bridge.ErrOtherInstance, on, from)
	}
	return nil
}
