package database

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrTableLocked: another session has locked a table that the database needs for its answer, such as
// an ALTER TABLE in an open transaction.
var ErrTableLocked = errors.New("table is locked")

// Answering asks every lockLook whether a statement has waited for lockPatience.
const (
	lockPatience = 10 * time.Second
	lockLook     = 5 * time.Second
)

// Answering calls ask, which makes statements on the databases that opened returns. If a statement
// waits for a lock on a table for more than ten seconds, Answering ends the context of ask, and its
// error, as context.Cause of that context, wraps ErrTableLocked and names the sessions in the way.
// Locked rows do not count. Statements that name a table of the bridge or of cmd/email-gateway count,
// also of other sessions with the same login. SQL Server and SQLite are not asked: the bounds of
// package database end the statement.
func Answering(ctx context.Context, opened func() []*Database, ask func(ctx context.Context) error) error {
	ctx, end := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(lockLook)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			for _, db := range opened() {
				if locked := db.tableLock(ctx); locked != nil {
					end(locked)
					return
				}
			}
		}
	}()
	err := ask(ctx)
	if locked := context.Cause(ctx); err != nil && errors.Is(locked, ErrTableLocked) {
		err = locked
	}
	end(nil)
	<-ended
	return err
}

// Answering is the function Answering for one database.
func (d *Database) Answering(ctx context.Context, ask func(ctx context.Context) error) error {
	return Answering(ctx, func() []*Database { return []*Database{d} }, ask)
}

// tableLock returns ErrTableLocked if such a statement of this login waits for a lock on a table. It
// returns nil if the server does not tell: another bound, or the user, then ends the statement.
func (d *Database) tableLock(ctx context.Context) error {
	if d.kind.tableLocks == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var waits []struct{ Locked, Holder string }
	if err := d.SelectContext(ctx, &waits, d.Rebind(d.kind.tableLocks), int(lockPatience.Seconds())); err != nil || len(waits) == 0 {
		return nil
	}
	var holders []string
	for _, wait := range waits {
		if !slices.Contains(holders, wait.Holder) {
			holders = append(holders, wait.Holder)
		}
	}
	return fmt.Errorf("%w: %s, for more than %v, by %s", ErrTableLocked, waits[0].Locked, lockPatience, strings.Join(holders, "; "))
}
