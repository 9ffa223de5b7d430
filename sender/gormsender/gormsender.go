// Package gormsender is sender.InTx for programs that use GORM:
//
//	err := gormsender.InTx(ctx, s, db, nil, func(tx *gormsender.Tx) error { // s is a *sender.Sender, db a *gorm.DB
//		if err := tx.Create(&order).Error; err != nil {
//			return err // rolls back
//		}
//		_, err := tx.Send(bridge.Message{Exchange: "orders", RoutingKey: "order.placed", …})
//		return err
//	})
//
// It is a module of its own, so that only programs that use GORM inherit it. Until the first release,
// go.mod needs two replace lines, for this module and for github.com/twoqueue/twoqueue, with a checkout
// (README of the root module).
//
// In a transaction that you begin and commit yourself, call SendTx as bridge.SQL says; then you must
// also judge the error of the COMMIT (sender.CommitError).
package gormsender

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
)

// A Tx is a GORM transaction that collects messages. Its DB is for functions that take a
// *gorm.DB. Transaction of GORM inside it is a savepoint. Commit and Rollback of GORM fail, and then
// InTx rolls back, whatever fn returns.
type Tx struct {
	*gorm.DB
	tx *sender.Tx
}

// Send is Send of sender.Tx: it copies the messages now, and InTx records and stages them when fn has
// returned. A rollback to a savepoint does not undo Send, but it undoes Stage.
func (t *Tx) Send(messages ...bridge.Message) ([]uuid.UUID, error) {
	return t.tx.Send(messages...)
}

// Stage is Stage of sender.Tx: it records and publishes the messages now, and InTx waits for the confirm
// before it commits.
func (t *Tx) Stage(ctx context.Context, messages ...bridge.Message) ([]uuid.UUID, error) {
	return t.tx.Stage(ctx, messages...)
}

// BridgeTx returns the transaction for other parts of the bridge that work in it, such as
// Sender.Cancel or an idempotency.Claim.
func (t *Tx) BridgeTx() bridge.Tx { return t.tx }

var (
	errInside = errors.New("begin transaction: db is in a transaction already: call InTx outside of it, or SendTx in it")
	errEnded  = errors.New("InTx ends the transaction: return an error from its function to roll back, and nil to commit")
)

// InTx is sender.InTx on db, with its guarantees and its errors: sender.ErrCommitUnknown if the answer
// to the COMMIT is missing. opts, which may be nil, is for BeginTx. Statements fail when fn has
// returned. GORM's Config is respected: PrepareStmt, and DefaultTransactionTimeout for a ctx without a
// deadline.
func InTx(ctx context.Context, s *sender.Sender, db *gorm.DB, opts *sql.TxOptions, fn func(tx *Tx) error) error {
	if db.Error != nil {
		return fmt.Errorf("begin transaction: %w", db.Error)
	}
	if _, inside := db.Statement.ConnPool.(gorm.TxCommitter); inside {
		return errInside
	}
	sqlDB, err := db.DB()
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	if _, ends := ctx.Deadline(); !ends && db.DefaultTransactionTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, db.DefaultTransactionTimeout)
		defer cancel()
	}
	return s.InTx(ctx, sqlDB, opts, func(tx *sender.Tx) error {
		pool := &pool{Tx: tx}
		t := &Tx{db.WithContext(ctx), tx}
		t.Statement.ConnPool = pool
		if prepared, ok := db.Statement.ConnPool.(*gorm.PreparedStmtDB); ok {
			t.Statement.ConnPool = &gorm.PreparedStmtTX{Tx: pool, PreparedStmtDB: prepared}
		}
		if err := fn(t); err != nil {
			return err
		}
		if pool.ended.Load() {
			return errEnded
		}
		return nil
	})
}

// pool is a transaction as GORM takes it.
type pool struct {
	*sender.Tx
	ended atomic.Bool // fn has called Commit or Rollback
}

var _ gorm.Tx = (*pool)(nil)

func (p *pool) Commit() error {
	p.ended.Store(true)
	return errEnded
}

func (p *pool) Rollback() error { return p.Commit() }
