// Package bunsender is sender.InTx for programs that use bun:
//
//	err := bunsender.InTx(ctx, s, db, nil, func(tx *bunsender.Tx) error { // s is a *sender.Sender, db a *bun.DB
//		if _, err := tx.NewInsert().Model(&order).Exec(ctx); err != nil {
//			return err // rolls back
//		}
//		_, err := tx.Send(bridge.Message{Exchange: "orders", RoutingKey: "order.placed", …})
//		return err
//	})
//
// It is a module of its own, so that only programs that use bun inherit it. Until the first release,
// go.mod needs two replace lines, for this module and for github.com/twoqueue/twoqueue, with a checkout
// (README of the root module).
//
// In a transaction that you begin and commit yourself, call SendTx as bridge.SQL says; then you must
// also judge the error of the COMMIT (sender.CommitError).
package bunsender

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/sender"
)

// A Tx is a bun transaction that collects messages. It is a bun.IDB; its RunInTx is a
// savepoint. It has no Commit and no Rollback: InTx ends the transaction. Do not use it after fn has
// returned: Send and Stage then fail, and statements fail once the transaction has ended.
type Tx struct {
	bun.IDB
	tx       *sql.Tx
	messages *sender.TxMessages
}

// Send is Send of sender.Tx: it copies the messages now, and InTx records and stages them when fn has
// returned. A rollback to a savepoint does not undo Send, but it undoes Stage.
func (t *Tx) Send(messages ...bridge.Message) ([]uuid.UUID, error) {
	return t.messages.Send(messages...)
}

// Stage is Stage of sender.Tx: it records and publishes the messages now, and InTx waits for the confirm
// before it commits.
func (t *Tx) Stage(ctx context.Context, messages ...bridge.Message) ([]uuid.UUID, error) {
	return t.messages.Stage(ctx, messages...)
}

// BridgeTx returns the transaction for other parts of the bridge that work in it, such as
// Sender.Cancel or an idempotency.Claim.
func (t *Tx) BridgeTx() bridge.Tx { return bridge.SQL(t.tx) }

// InTx is sender.InTx on db, with its guarantees and its errors: sender.ErrCommitUnknown if the answer
// to the COMMIT is missing. opts, which may be nil, is for BeginTx. bun's query hooks see the BEGIN and
// the COMMIT or ROLLBACK.
func InTx(ctx context.Context, s *sender.Sender, db *bun.DB, opts *sql.TxOptions, fn func(tx *Tx) error) error {
	var tx bun.Tx
	err := driver.Begin(ctx, db.DB, func() (err error) {
		tx, err = db.BeginTx(ctx, opts)
		return err
	})
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	return s.InBegun(ctx, &begun{Tx: tx.Tx, tx: tx}, func(messages *sender.TxMessages) error {
		return fn(&Tx{tx, tx.Tx, messages})
	})
}

// begun is a transaction of bun. bun formats no statement of the bridge, since it knows no $1.
type begun struct {
	*sql.Tx
	tx    bun.Tx
	ended bool
}

func (b *begun) Commit() error {
	b.ended = true
	return b.tx.Commit()
}

// Rollback tells the query hooks nothing after a Commit.
func (b *begun) Rollback() error {
	if b.ended {
		return b.Tx.Rollback()
	}
	return b.tx.Rollback()
}
