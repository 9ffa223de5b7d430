package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

// Code that the commands for receivers share: pending, gaps and marks.

// An inboxDatabase is a receiver's database with its inbox.
type inboxDatabase struct {
	*database.Database
	inbox driver.Inbox
}

// inbox opens the inbox in the database of BRIDGE_INBOX_URL, or else of BRIDGE_DATABASE_URL, once.
func (a *app) inbox(ctx context.Context) (*inboxDatabase, error) {
	if a.opened.inbox != nil && a.opened.inbox.inbox != nil {
		return a.opened.inbox, nil
	}
	variable, url, err := a.schemaURL(migrate.InboxPart)
	if err != nil {
		return nil, err
	}
	db, err := a.config.Inbox.Schema.Open(ctx, url)
	if err != nil {
		return nil, about(variable, err)
	}
	opened := &inboxDatabase{Database: db}
	a.mu.Lock()
	a.opened.inbox = opened // answered sees it from now on
	a.mu.Unlock()
	if opened.inbox, err = db.Inbox(ctx); err != nil {
		return nil, about(variable, err)
	}
	return opened, nil
}

// consumers returns the named consumers, or else all consumers that have rows in a table.
func (d *inboxDatabase) consumers(ctx context.Context, named []string, table string) ([]string, error) {
	if len(named) > 0 {
		return named, nil
	}
	all, err := listConsumers(ctx, d.Database, table)
	if err != nil {
		return nil, fmt.Errorf("list the inbox's consumers: %w; name them with --consumer", err)
	}
	return all, nil
}

// errRolledBack ends a transaction whose changes must not stay.
var errRolledBack = errors.New("rolled back")

// inTx runs work in a transaction, and rolls it back after an error.
func (d *inboxDatabase) inTx(ctx context.Context, work func(tx bridge.Tx) error) error {
	tx, err := d.BeginTxx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // without effect after a commit
	if err := work(bridge.SQL(tx)); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// effects returns an Effects that takes no deliveries. It logs nothing: its errors report everything.
func (d *inboxDatabase) effects(consumer string) (*pending.Effects, error) {
	return pending.New(d.inbox, consumer, &pending.Options{HandBack: true, Logger: slog.New(slog.DiscardHandler)})
}

// oneConsumer adds the flag --consumer to a command that changes something.
func oneConsumer(cmd *cobra.Command, consumer *string) {
	cmd.Flags().StringVar(consumer, "consumer", "", "the receiver's consumer name")
}

// patienceFlag is the flag --wait: how long a change waits for a worker that has locked the same
// row.
type patienceFlag struct{ wait time.Duration }

func (f *patienceFlag) flags(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.wait, "wait", 15*time.Second, "how long to wait for a worker's transaction that has locked the same row")
}

// within runs a change, and bounds its wait for a worker.
func (f *patienceFlag) within(ctx context.Context, change func(ctx context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, f.wait)
	defer cancel()
	err := change(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("no answer within %v: a worker's transaction may have locked the row; check again, and raise --wait: %w", f.wait, err)
	}
	return err
}

// agree has the flags by which the user agrees to a change.
type agree struct{ yes, dry bool }

func (c *agree) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&c.yes, "yes", "y", false, "confirm the change")
	cmd.Flags().BoolVar(&c.dry, "dry-run", false, "print the changes without making them")
}

// check refuses a change to which the user has not agreed.
func (c *agree) check(changed string) error {
	if c.yes || c.dry {
		return nil
	}
	return misused("this changes the %s permanently: confirm with --yes, or preview with --dry-run", changed)
}
