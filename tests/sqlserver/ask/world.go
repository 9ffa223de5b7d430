package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
)

// world is the database with the bridge's tables.
type world struct {
	db     *sql.DB
	url    string
	ledger *sqlserver.Ledger
	inbox  *sqlserver.Inbox
}

func (w *world) set(ctx context.Context) error {
	err := errors.Join(migrate.Ledger(ctx, w.db, migrate.SQLServer), migrate.Inbox(ctx, w.db, migrate.SQLServer))
	if err == nil {
		w.ledger, err = sqlserver.Open(ctx, w.db)
	}
	if err == nil {
		w.inbox, err = sqlserver.OpenInbox(ctx, w.db)
	}
	if err != nil {
		return errors.Join(err, w.clear())
	}
	return nil
}

// made are the tables that set creates.
var made = []string{"bridge_ledger", "bridge_identity", "bridge_watermark", "bridge_ledger_version",
	"bridge_inbox", "bridge_inbox_pending", "bridge_mark", "bridge_kept", "bridge_inbox_version"}

func (w *world) clear() (all error) {
	for _, table := range made {
		if _, err := w.db.ExecContext(context.Background(), "DROP TABLE "+table); err != nil {
			all = errors.Join(all, fmt.Errorf("drop %s: %w", table, err))
		}
	}
	return all
}

// begin begins a transaction whose lock waits end with an error after a second.
func (w *world) begin(ctx context.Context) (*sql.Tx, error) { return w.beginAt(ctx, sql.LevelDefault) }

func (w *world) beginAt(ctx context.Context, level sql.IsolationLevel) (*sql.Tx, error) {
	tx, err := w.db.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: level})
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, "SET LOCK_TIMEOUT 1000"); err != nil {
		return nil, errors.Join(err, tx.Rollback())
	}
	return tx, nil
}

// in runs steps, each in a committed transaction of its own.
func (w *world) in(ctx context.Context, steps ...func(tx bridge.Tx) error) error {
	for i, step := range steps {
		tx, err := w.begin(ctx)
		if err != nil {
			return err
		}
		if err := step(bridge.SQL(tx)); err != nil {
			_ = tx.Rollback()
			return fmt.Errorf("step %d: %w", i+1, err)
		}
		if err := tx.Commit(); err != nil {
			return err
		}
	}
	return nil
}
