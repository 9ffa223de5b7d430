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

// handleWithClaim is Deduplicator.HandleWithClaim.
func handleWithClaim(ctx context.Context, keys *engine.Keys, d amqp.Delivery, fn func(context.Context, Claim) error) error {
	defer keys.PurgeSome(ctx, keys.Inbox.DB(), d)
	return keys.Deliver(ctx, d, func(ctx context.Context) (engine.Outcome, error) {
		key, err := keys.Key(d)
		if err != nil {
			return engine.Unfinished, err
		}
		return attemptWithClaim(ctx, keys, key, fn)
	})
}

// attemptWithClaim lets fn claim key and do its work, and checks that it has committed.
func attemptWithClaim(ctx context.Context, keys *engine.Keys, key string, fn func(context.Context, Claim) error) (engine.Outcome, error) {
	var claimed, fresh bool
	var claimError error
	claim := func(ctx context.Context, tx bridge.Tx) (bool, error) {
		fresh, claimError = keys.Claim(ctx, tx, key)
		claimed = claimError == nil
		return fresh && claimed, claimError
	}
	err := keys.RecoverPanic("handler", key, func() error { return fn(ctx, claim) })
	switch {
	case claimError != nil:
		return engine.Unfinished, claimError
	case err == nil && !claimed:
		return engine.Unfinished, engine.Failure(errNotClaimed)
	}
	done, lookError := committed(ctx, keys, key)
	switch {
	case lookError != nil:
		return engine.Unfinished, errors.Join(err, lookError)
	case done && fresh: // in spite of an error of fn: the answer to its COMMIT may be lost
		return engine.Handled, nil
	case done:
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
func committed(ctx context.Context, keys *engine.Keys, key string) (bool, error) {
	committed, err := look(ctx, keys, key)
	if !errors.Is(err, errNoAnswer) {
		return committed, err
	}
	if pingError := answers(ctx, keys.Inbox.DB()); pingError != nil {
		return false, fmt.Errorf("%w: %w", err, pingError)
	}
	committed, err = look(ctx, keys, key)
	if errors.Is(err, errNoAnswer) && answers(ctx, keys.Inbox.DB()) == nil {
		return false, engine.Failure(errNotCommitted) // another transaction still has it open
	}
	return committed, err
}

// errNoAnswer: a transaction began, and its claim got no answer within lookLimit.
var errNoAnswer = errors.New("query the claim: no answer")

// look makes one attempt of committed.
func look(parent context.Context, keys *engine.Keys, key string) (bool, error) {
	ctx, cancel := context.WithTimeout(parent, lookLimit)
	defer cancel()
	var tx *sql.Tx
	err := driver.Begin(ctx, keys.Inbox.DB(), func() (err error) {
		tx, err = keys.Inbox.DB().BeginTx(ctx, nil)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("query the claim: %w", err)
	}
	defer tx.Rollback()
	absent, err := keys.Inbox.Claim(ctx, bridge.SQL(tx), keys.Consumer, []string{key})
	switch {
	case ctx.Err() != nil && parent.Err() == nil:
		return false, errNoAnswer
	case err != nil:
		return false, fmt.Errorf("query the claim: %w", err)
	}
	return len(absent) == 0, nil
}

// answers returns nil if the database answers on some connection within lookLimit.
func answers(parent context.Context, db *sql.DB) error {
	ctx, cancel := context.WithTimeout(parent, lookLimit)
	defer cancel()
	return db.PingContext(ctx)
}
