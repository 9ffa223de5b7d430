package idempotency

import (
	"context"
	"database/sql"
	"time"
)

// watched is how many entities a round of Watch looks at.
const watched = 1000

// Watch looks every OrderedOptions.GapAge at what is kept, until ctx ends. It handles
// by fn what is due, as after a Skip or where a kept event had failed; and it logs a
// warning, once, for each entity that has waited for longer than GapAge for a version
// that is not there. The thousand entities that have waited longest are looked at. The
// events that are due of one entity are handled for Options.Hold at most in each round;
// an entity whose handling fails or takes that long holds up no other for good.
//
// Run it beside the consumers, in one of the processes that share the work or in each. Each one
// logs.
func (o *Ordered) Watch(ctx context.Context, db *sql.DB, fn EventFunc) {
	if db == nil || fn == nil {
		panic("idempotency: Watch needs a database and a function")
	}
	ticker := time.NewTicker(o.opts.GapAge)
	defer ticker.Stop()
	var reported map[string]int64
	for {
		reported = o.round(ctx, db, fn, reported)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// OldGaps returns how many entities had waited for longer than OrderedOptions.GapAge when Watch
// last looked; a thousand means a thousand or more.
func (o *Ordered) OldGaps() int { return int(o.oldGaps.Load()) }

// round looks once. reported are the entities whose gaps have been logged, with the
// version that was missing; it returns those of now.
func (o *Ordered) round(ctx context.Context, db *sql.DB, fn EventFunc, reported map[string]int64) map[string]int64 {
	var gaps []Gap
	err := o.held(ctx, func(ctx context.Context) (err error) {
		gaps, err = o.Gaps(ctx, db, watched)
		return err
	})
	if err != nil {
		o.warn(ctx, err)
		return reported
	}
	old := make(map[string]int64)
	for _, gap := range gaps {
		if gap.Age < o.opts.GapAge {
			continue
		}
		old[gap.Entity] = gap.Missing
		if gap.Missing != gap.First && reported[gap.Entity] != gap.Missing {
			o.guard.log.Warn("entity waits for a version", "entity", gap.Entity, "missing", gap.Missing,
				"first_kept", gap.First, "kept", gap.Kept, "age", gap.Age)
		}
	}
	o.oldGaps.Store(int64(len(old)))
	o.catchUpAll(ctx, db, gaps, fn)
	return old
}

// catchUpAll handles what is due of each entity, each for Options.Hold at most. One that
// fails holds up no other, unless the database is away.
func (o *Ordered) catchUpAll(ctx context.Context, db *sql.DB, gaps []Gap, fn EventFunc) {
	for _, gap := range gaps {
		if gap.Missing != gap.First {
			continue
		}
		err := o.held(ctx, func(ctx context.Context) error { return o.catchUp(ctx, db, gap.Entity, fn) })
		if err == nil {
			continue
		}
		o.warn(ctx, err)
		if o.held(ctx, db.PingContext) != nil {
			return
		}
	}
}

// held runs f with a context that ends after Options.Hold.
func (o *Ordered) held(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, o.guard.opts.Hold)
	defer cancel()
	return f(ctx)
}

func (o *Ordered) warn(ctx context.Context, err error) {
	if ctx.Err() == nil {
		o.guard.log.Warn("watch failed, trying again later", "error", err)
	}
}
