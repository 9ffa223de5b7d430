package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// A Claim claims the delivery's key in a transaction of the caller, and reports whether the key is
// fresh. If it is not, the message was handled before: do nothing more in tx, and return nil. If
// another open transaction has claimed the key, Claim waits until that one ends. After an error,
// roll back and return the error. Claim may be called again in another transaction. fn itself must
// call it, not another goroutine.
type Claim func(ctx context.Context, tx bridge.Tx) (fresh bool, err error)

// lookLimit bounds each step of the check of a claim from outside of its transaction.
const lookLimit = 10 * time.Second

var (
	errNotClaimed   = errors.New("the handler returned nil without claiming the key: call claim in the transaction")
	errNotCommitted = errors.New("the handler returned nil, and its claim is not committed: commit before you return")
)

// HandleWithClaim is Handle in a transaction that the caller begins and commits, with any library:
//
//	err := dedup.HandleWithClaim(ctx, d, func(ctx context.Context, claim idempotency.Claim) error {
//		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//			if fresh, err := claim(ctx, pgxbridge.Tx(tx)); err != nil || !fresh {
//				return err
//			}
//			_, err := tx.Exec(ctx, `INSERT INTO emails …`, d.Body)
//			return err
//		})
//	})
//
// fn must claim before it does anything else in the transaction, do all its work there, and return
// nil only after the commit. It must not ack or reject d. When fn has returned, HandleWithClaim checks
// from another connection of the inbox's DB whether the claim is committed. If so, it acks d. If fn
// forgets the commit, or leaves the transaction open, the attempt fails. If fn returns an error
// although its claim is committed, because the answer to the COMMIT was lost, the message counts as
// handled.
//
// With pgx, package pgxreceiver needs no second connection.
//
// Attempts, errors, pauses and Options.Hold are as with Handle. A failed attempt counts against the
// handler, unless the claim itself fails or the database does not answer afterwards. A crash at any
// moment loses no message.
func (dedup *Deduplicator) HandleWithClaim(ctx context.Context, d amqp.Delivery, fn func(ctx context.Context, claim Claim) error) error {
	if fn == nil {
		panic("idempotency: HandleWithClaim needs a function")
	}
	dedup.refuseTxOptions("HandleWithClaim")
	defer dedup.keys.PurgeSome(ctx, dedup.keys.Inbox.DB(), d)
	return dedup.keys.Deliver(ctx, d, func(ctx context.Context) (engine.Outcome, error) {
		key, err := dedup.keys.Key(d)
		if err != nil {
			return engine.Unfinished, err
		}
		return dedup.attemptWithClaim(ctx, key, fn)
	})
}

// attemptWithClaim lets fn claim key and do its work, and checks that it has committed.
func (dedup *Deduplicator) attemptWithClaim(ctx context.Context, key string, fn func(context.Context, Claim) error) (engine.Outcome, error) {
	var claimed, fresh bool
	var claimError error
	claim := func(ctx context.Context, tx bridge.Tx) (bool, error) {
		fresh, claimError = dedup.keys.Claim(ctx, tx, key)
		claimed = claimError == nil
		return fresh && claimed, claimError
	}
	err := dedup.keys.RecoverPanic("handler", key, func() error { return fn(ctx, claim) })
	switch {
	case claimError != nil:
		return engine.Unfinished, claimError
	case err == nil && !claimed:
		return engine.Unfinished, engine.Failure(errNotClaimed)
	}
	committed, lookError := dedup.committed(ctx, key)
	switch {
	case lookError != nil:
		return engine.Unfinished, errors.Join(err, lookError)
	case committed && fresh: // in spite of an error of fn: the answer to its COMMIT may be lost
		return engine.Handled, nil
	case committed:
		return engine.Duplicate, nil
	case err != nil:
		return engine.Unfinished, engine.Failure(fmt.Errorf("run handler: %w", err))
	}
	return engine.Unfinished, engine.Failure(errNotCommitted)
}

// committed reports whether a committed transaction has claimed key. It claims the key itself,
// which waits for an open transaction that has claimed it, and rolls back. A claim that gets no
// answer proves no such transaction, because the database may be silent. So the handler is to blame
// only if two claims get no answer, and after each of them the database does answer.
func (dedup *Deduplicator) committed(ctx context.Context, key string) (bool, error) {
	committed, err := dedup.look(ctx, key)
	if !errors.Is(err, errNoAnswer) {
		return committed, err
	}
	if pingError := dedup.answers(ctx); pingError != nil {
		return false, fmt.Errorf("%w: %w", err, pingError)
	}
	committed, err = dedup.look(ctx, key)
	if errors.Is(err, errNoAnswer) && dedup.answers(ctx) == nil {
		return false, engine.Failure(errNotCommitted) // another transaction still has it open
	}
	return committed, err
}

// errNoAnswer: a transaction began, and its claim got no answer within lookLimit.
var errNoAnswer = errors.New("query the claim: no answer")

// look makes one attempt of committed.
func (dedup *Deduplicator) look(parent context.Context, key string) (bool, error) {
	ctx, cancel := context.WithTimeout(parent, lookLimit)
	defer cancel()
	var tx *sql.Tx
	err := driver.Begin(ctx, dedup.keys.Inbox.DB(), func() (err error) {
		tx, err = dedup.keys.Inbox.DB().BeginTx(ctx, nil)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("query the claim: %w", err)
	}
	defer tx.Rollback()
	absent, err := dedup.keys.Inbox.Claim(ctx, bridge.SQL(tx), dedup.keys.Consumer, []string{key})
	switch {
	case ctx.Err() != nil && parent.Err() == nil:
		return false, errNoAnswer
	case err != nil:
		return false, fmt.Errorf("query the claim: %w", err)
	}
	return len(absent) == 0, nil
}

// answers returns nil if the database answers on some connection within lookLimit.
func (dedup *Deduplicator) answers(parent context.Context) error {
	ctx, cancel := context.WithTimeout(parent, lookLimit)
	defer cancel()
	return dedup.keys.Inbox.DB().PingContext(ctx)
}
