package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

const (
	// purgeBatch is how many claims one step of a purge reads, and so deletes at most: few enough to
	// take some milliseconds.
	purgeBatch = 500

	// purgeLook is how many claims a step reads first. Often these show already that all are young.
	// PostgreSQL finds that few by the index even before it has statistics of the table.
	purgeLook = 8

	// purgeEvery is the number of messages after which a Keys makes a step: less than purgeBatch, so
	// that the purge is faster than the claims.
	purgeEvery = 200

	// purgeRest times the duration of a step is the pause after it in Purge, so that the database is
	// mostly free for claims.
	purgeRest = 4

	// purgeAhead is the largest assumed lead of the senders' clocks.
	purgeAhead = 24 * time.Hour
)

// A purge is the position of the steps of a Keys.
type purge struct {
	mu     sync.Mutex
	begun  bool   // the first step is done
	claims int    // messages since the last step
	after  string // the next step begins after this key
}

// Purge is idempotency.Deduplicator.Purge.
func (e *Keys) Purge(ctx context.Context, db *sql.DB) (forgotten int64, err error) {
	if e.Opts.Retention < 0 {
		return 0, nil
	}
	for after := ""; ; {
		begun := time.Now()
		n, next, err := e.purgeStep(ctx, db, after)
		forgotten += n
		switch {
		case err != nil && ctx.Err() != nil: // err may be the error of the broken connection
			return forgotten, fmt.Errorf("purge inbox: %w: %w", context.Cause(ctx), err)
		case err != nil:
			return forgotten, fmt.Errorf("purge inbox: %w", err)
		case next == "":
			return forgotten, nil
		}
		if !Pause(ctx, purgeRest*time.Since(begun)) {
			return forgotten, fmt.Errorf("purge inbox: %w", context.Cause(ctx))
		}
		after = next
	}
}

// PurgeSome makes a step of the purge for every purgeEvery messages, unless another goroutine is
// purging. It runs after the acks of ds, when only the next message waits for it, and takes at most
// ten seconds, or Options.MaxDelay if that is less.
func (e *Keys) PurgeSome(ctx context.Context, db *sql.DB, ds ...amqp.Delivery) {
	if e.Opts.Retention < 0 || !e.purge.mu.TryLock() {
		return
	}
	defer e.purge.mu.Unlock()
	if e.purge.claims += len(ds); e.purge.claims < purgeEvery {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, e.Opts.ShortDelay())
	defer cancel()
	for ok := true; ok && e.purge.claims >= purgeEvery; e.purge.claims -= purgeEvery {
		ok = e.purgeNext(ctx, db, ds[0])
	}
}

// purgeNext makes a step of the purge, and reports whether it succeeded.
func (e *Keys) purgeNext(ctx context.Context, db *sql.DB, d amqp.Delivery) bool {
	_, next, err := e.purgeStep(ctx, db, e.purge.after)
	if err == nil && !e.purge.begun {
		// The second step begins at the key of this process's message, not behind the first step: a process
		// may end before it has walked through all keys. If keys are random, such processes begin at
		// different keys, and together reach all keys.
		e.purge.begun = true
		key, _ := e.Key(d)
		_, next, err = e.purgeStep(ctx, db, key)
	}
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			e.Log.Warn("old keys cannot be purged", "error", err)
		}
		return false
	}
	e.purge.after = next
	return true
}

// purgeStep reads the claims after a key, deletes the old ones, and returns the key after which the
// next step begins; "" after the last.
func (e *Keys) purgeStep(ctx context.Context, db *sql.DB, after string) (forgotten int64, next string, err error) {
	now, keep := time.Now(), e.Opts.Retention+purgeMargin
	most := purgeLook
	claims, err := e.claimed(ctx, db, after, most)
	if err == nil && len(claims) == most && allYoung(claims, now, keep) == noTime {
		most = purgeBatch
		claims, err = e.claimed(ctx, db, after, most)
	}
	if err != nil {
		return 0, after, err
	}
	if old := oldKeys(claims, now, keep); len(old) > 0 {
		err := InOwnTx(ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
			forgotten, err = e.Inbox.Forget(ctx, tx, e.Consumer, old, keep)
			return err
		})
		if err != nil {
			return 0, after, err
		}
	}
	e.Count.Purged.Add(uint64(forgotten))
	if len(claims) < most {
		e.Count.PurgePasses.Add(1)
		return forgotten, "", nil
	}
	next = claims[len(claims)-1].Key
	if kind := allYoung(claims, now, keep); kind != noTime {
		// All later keys of this kind are younger still.
		next = max(next, firstKey(kind, now.Add(purgeAhead)))
	}
	return forgotten, next, nil
}

// claimed reads the claims after a key.
func (e *Keys) claimed(ctx context.Context, db *sql.DB, after string, most int) (claims []driver.Claimed, err error) {
	err = InOwnTx(ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
		claims, err = e.Inbox.Claimed(ctx, tx, e.Consumer, after, most)
		return err
	})
	return claims, err
}

// oldKeys returns the keys that may be purged: no process treats them as new any more, even if the
// sender's clock was ahead.
func oldKeys(claims []driver.Claimed, now time.Time, keep time.Duration) (old []string) {
	for _, c := range claims {
		made, _ := keyTime(c.Key) // zero, so long ago, if the key contains no time
		if c.Age > keep && now.Sub(made) > keep {
			old = append(old, c.Key)
		}
	}
	return old
}

// allYoung returns the kind of the keys if all have the same kind, and none of them is old.
func allYoung(claims []driver.Claimed, now time.Time, keep time.Duration) keyKind {
	_, first := keyTime(claims[0].Key)
	for _, c := range claims {
		made, kind := keyTime(c.Key)
		if kind != first || now.Sub(made) > keep {
			return noTime
		}
	}
	return first
}
