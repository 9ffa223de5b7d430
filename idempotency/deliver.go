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
)

// An outcome is how a delivery ended that is to be acked.
type outcome int

const (
	unfinished outcome = iota
	handled            // the handler's effects are committed
	duplicate          // they were committed before
	stale              // later ones were committed before
	kept               // the message is stored, to be handled when its turn comes
	doubtful           // the message is stored, and nobody knows whether its effect was done
)

// A refusal is an error that no further attempt can change: the message is dead-lettered.
type refusal struct{ err error }

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// errGone is why a delivery is handed back whose call does not return.
var errGone = errors.New("the goroutine has ended in the attempt, by runtime.Goexit or a panic outside of the handler")

// deliver makes attempts at d until one of them ends it, and tells the broker; so it does
// when the goroutine ends first.
func (g *Guard) deliver(ctx context.Context, d amqp.Delivery, attempt func(ctx context.Context) (outcome, error)) error {
	ended := false
	defer func() {
		if !ended {
			g.log.Error("message not handled", "message_id", d.MessageId, "error", g.unfinished(ctx, d, errGone))
		}
	}()
	err := g.tryToEnd(ctx, d, attempt)
	ended = true
	return err
}

// tryToEnd makes attempts at d, with growing pauses, until one of them ends it, or it
// is given up, or it has been held for too long, or the caller stops; and tells the broker.
//
// Two contexts: no attempt begins and no pause goes on after caller has ended; the attempt in
// progress has ctx, which ends Options.Drain later, or as the Consumer says. Both end with
// Options.Hold.
func (g *Guard) tryToEnd(caller context.Context, d amqp.Delivery, attempt func(ctx context.Context) (outcome, error)) (result error) {
	draining := caller
	caller, cancel, inConsumer := untilStop(caller)
	defer cancel()
	if caller.Err() != nil {
		return g.leave(d, context.Cause(caller))
	}
	limit := time.Now().Add(g.opts.Hold)
	caller, cancel = context.WithDeadlineCause(caller, limit, errHeldTooLong)
	defer cancel()
	if !inConsumer {
		draining, cancel = g.draining(caller)
		defer cancel()
	}
	ctx, cancel := context.WithDeadlineCause(draining, limit, errHeldTooLong)
	defer cancel()

	failed := g.failures.take(d.MessageId)
	defer func() {
		anew := g.opts.HandBack && failed >= g.opts.Attempts
		if !anew && (errors.Is(result, ErrHandedBack) || errors.Is(result, ErrLeftUnacked)) {
			g.failures.put(d.MessageId, failed)
		}
	}()
	delays := g.opts.shortDelays()
	for {
		ended, err := attempt(ctx)
		if err == nil {
			g.count.outcome(ended).Add(1)
			return g.ack(d)
		}
		if errors.As(err, new(*refusal)) {
			return g.giveUp(caller, ctx, d, err)
		}
		if caller.Err() != nil { // which may be why the attempt failed
			return g.unfinished(caller, d, fmt.Errorf("%w: %w", context.Cause(caller), err))
		}
		var delay time.Duration
		if errors.As(err, new(*handlerError)) && g.counts(err) {
			g.count.failedAttempts.Add(1)
			failed++
			if failed >= g.opts.Attempts || permanent(err) {
				return g.giveUp(caller, ctx, d, err)
			}
			delay = g.opts.delay(failed)
			delays.Reset()
		} else {
			delay = after(err, delays.NextBackOff)
		}
		g.log.Warn("attempt failed, trying again", "message_id", d.MessageId,
			"failed", failed, "of", g.opts.Attempts, "delay", delay, "error", err)
		if !pause(caller, delay) {
			return g.unfinished(caller, d, fmt.Errorf("%w: %w", context.Cause(caller), err))
		}
	}
}

func beginOn(ctx context.Context, db *sql.DB) (conn *sql.Conn, tx *sql.Tx, err error) {
	err = driver.Begin(ctx, db, func() (err error) {
		if conn, err = db.Conn(ctx); err != nil {
			return fmt.Errorf("connect to database: %w", err)
		}
		if tx, err = conn.BeginTx(ctx, nil); err != nil {
			_ = conn.Close()
			return fmt.Errorf("begin transaction: %w", err)
		}
		return nil
	})
	return conn, tx, err
}

// inTx runs work in a transaction, which it commits if the message is handled or kept.
//
// It holds one connection throughout, so that afterwards it can ask that very
// connection whether it still answers: on a live one a failure is the handler's,
// on a dead one the database's, and a commit that failed may have happened.
func (g *Guard) inTx(ctx context.Context, db *sql.DB, work func(ctx context.Context, tx *sql.Tx) (outcome, error)) (outcome, error) {
	conn, tx, err := beginOn(ctx, db)
	if err != nil {
		return unfinished, err
	}
	defer conn.Close()
	defer tx.Rollback() // without effect after a commit
	if err := g.marks.Enter(ctx, bridge.SQL(tx)); err != nil {
		return unfinished, fmt.Errorf("begin transaction: %w", err)
	}

	ended, err := work(ctx, tx)
	if failure := new(handlerError); errors.As(err, &failure) {
		_ = tx.Rollback() // the ping below tells what matters
		return unfinished, blame(ctx, conn, failure.err)
	}
	if err != nil || ended != handled && ended != kept {
		return ended, err
	}
	err = g.marks.Leave(ctx, bridge.SQL(tx))
	switch {
	case errors.Is(err, bridge.ErrTxEnded):
		return unfinished, &handlerError{fmt.Errorf("commit: %w", err)}
	case err != nil:
		return unfinished, fmt.Errorf("commit: %w", err)
	}
	// Who has seen the context end is told nothing else by the commit, which may not have
	// seen it yet.
	if err := ctx.Err(); err != nil {
		return unfinished, fmt.Errorf("commit: %w", err)
	}
	if err := tx.Commit(); err != nil {
		if errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil {
			err = fmt.Errorf("the handler has ended the transaction itself: %w", err)
		}
		return unfinished, blame(ctx, conn, fmt.Errorf("commit: %w", err))
	}
	return ended, nil
}

// run runs a handler. Its error is a handlerError.
func (g *Guard) run(key string, fn func() error) error {
	if err := g.contain("handler", key, fn); err != nil {
		return &handlerError{fmt.Errorf("run handler: %w", err)}
	}
	return nil
}
