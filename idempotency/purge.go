package idempotency

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
	// purgeBatch is how many claims one step of a purge looks at, and so deletes, at
	// most: few enough to take some milliseconds.
	purgeBatch = 500

	// purgeLook is how many claims a step looks at first. Often they already tell that all are
	// young. PostgreSQL finds so few by the index also before it has statistics of the table.
	purgeLook = 8

	// purgeEvery is after how many claims of its own a Guard makes such a step: less
	// than purgeBatch, so that the purge gains on the claims.
	purgeEvery = 200

	// purgeRest is how many times as long as a step of it Purge rests after it, so that
	// claims find the database mostly theirs.
	purgeRest = 4

	// purgeAhead is how far ahead the clocks of senders are believed to be.
	purgeAhead = 24 * time.Hour
)

// A purge is how far the steps of a Guard have come.
type purge struct {
	mu     sync.Mutex
	begun  bool   // the first step has been made
	claims int    // since the last step
	after  string // the key that the next step begins after
}

// Purge forgets the keys of this consumer that are older than Options.Retention, in one pass
// over all of them, and returns their number. It is for a backlog, for example after
// Options.Retention was shortened. Handle, HandleTx, AtMostOnce and Accept purge as they go,
// one step for every 200 messages.
//
// The pass goes through the keys in the order of the primary key, in steps of up to 500. Each step
// has short transactions that lock only the old claims which they delete. After each step Purge
// rests, so that it works a fifth of the time. It skips keys that tell their age (see
// Options.Retention) and are new enough; it reads all others. A crash or an error leaves whole
// steps. When ctx ends, the error wraps its cause. With a negative Retention, which keeps keys
// for ever, Purge does nothing.
func (g *Guard) Purge(ctx context.Context, db *sql.DB) (forgotten int64, err error) {
	if g.opts.Retention < 0 {
		return 0, nil
	}
	for after := ""; ; {
		begun := time.Now()
		n, next, err := g.purgeStep(ctx, db, after)
		forgotten += n
		if err != nil {
			return forgotten, fmt.Errorf("purge inbox: %w", err)
		}
		if next == "" {
			return forgotten, nil
		}
		if !pause(ctx, purgeRest*time.Since(begun)) {
			return forgotten, fmt.Errorf("purge inbox: %w", context.Cause(ctx))
		}
		after = next
	}
}

// purgeSome makes a step of the purge for every purgeEvery messages, unless another goroutine is
// at it. It is for after the acks of ds, when nothing waits for it but the next message, and
// takes no longer than ten seconds, or Options.MaxDelay if that is less.
func (g *Guard) purgeSome(ctx context.Context, db *sql.DB, ds ...amqp.Delivery) {
	if g.opts.Retention < 0 || !g.purge.mu.TryLock() {
		return
	}
	defer g.purge.mu.Unlock()
	if g.purge.claims += len(ds); g.purge.claims < purgeEvery {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, g.opts.shortDelay())
	defer cancel()
	for ok := true; ok && g.purge.claims >= purgeEvery; g.purge.claims -= purgeEvery {
		ok = g.purgeNext(ctx, db, ds[0])
	}
}

// purgeNext makes a step of the purge, and tells whether the database allowed it.
func (g *Guard) purgeNext(ctx context.Context, db *sql.DB, d amqp.Delivery) bool {
	_, next, err := g.purgeStep(ctx, db, g.purge.after)
	if err == nil && !g.purge.begun {
		// The walk goes on at a key of this process. So processes that end before their
		// walk does together come to all keys, if new keys are spread over all.
		g.purge.begun = true
		key, _ := g.key(d)
		_, next, err = g.purgeStep(ctx, db, key)
	}
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			g.log.Warn("old keys cannot be purged", "error", err)
		}
		return false
	}
	g.purge.after = next
	return true
}

// purgeStep looks at the claims after a key, and returns the one that the next step
// begins after; "" after the last.
func (g *Guard) purgeStep(ctx context.Context, db *sql.DB, after string) (forgotten int64, next string, err error) {
	now, keep := time.Now(), g.opts.Retention+purgeMargin
	most := purgeLook
	claims, err := g.claimed(ctx, db, after, most)
	if err == nil && len(claims) == most && allYoung(claims, now, keep) == noTime {
		most = purgeBatch
		claims, err = g.claimed(ctx, db, after, most)
	}
	if err != nil {
		return 0, after, err
	}
	if old := oldKeys(claims, now, keep); len(old) > 0 {
		err := inOwnTx(ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
			forgotten, err = g.inbox.Forget(ctx, tx, g.consumer, old, keep)
			return err
		})
		if err != nil {
			return 0, after, err
		}
	}
	g.count.purged.Add(uint64(forgotten))
	if len(claims) < most {
		g.count.purgePasses.Add(1)
		return forgotten, "", nil
	}
	next = claims[len(claims)-1].Key
	if kind := allYoung(claims, now, keep); kind != noTime {
		// All that follow of this kind are younger still.
		next = max(next, firstKey(kind, now.Add(purgeAhead)))
	}
	return forgotten, next, nil
}

// claimed reads the claims after a key.
func (g *Guard) claimed(ctx context.Context, db *sql.DB, after string, most int) (claims []driver.Claimed, err error) {
	err = inOwnTx(ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
		claims, err = g.inbox.Claimed(ctx, tx, g.consumer, after, most)
		return err
	})
	return claims, err
}

// oldKeys returns the keys that may be forgotten: nobody takes them for new any more,
// also where the sender's clock was ahead.
func oldKeys(claims []driver.Claimed, now time.Time, keep time.Duration) (old []string) {
	for _, c := range claims {
		made, _ := keyTime(c.Key) // long ago, if the key does not tell
		if c.Age > keep && now.Sub(made) > keep {
			old = append(old, c.Key)
		}
	}
	return old
}

// allYoung returns the kind of the keys if all are of one, and none of them is old.
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
