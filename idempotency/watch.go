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
// that is not there. The thousand entities that have waited longest are looked at.
//
// Run it beside the consumers, in one of the processes that share the work or in
// each; then each logs.
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

// OldGaps returns how many entities had waited for longer than OrderedOptions.GapAge
// when Watch last looked; a thousand stands for a thousand or more.
func (o *Ordered) OldGaps() int { return int(o.oldGaps.Load()) }

// round looks once. reported are the entities whose gaps have been logged, with the
// version that was missing; it returns those of now.
func (o *Ordered) round(ctx context.Context, db *sql.DB, fn EventFunc, reported map[string]int64) map[string]int64 {
	ctx, cancel := context.WithTimeout(ctx, o.guard.opts.Hold)
	defer cancel()
	gaps, err := o.Gaps(ctx, db, watched)
	old := make(map[string]int64)
	for _, gap := range gaps {
		if gap.Age >= o.opts.GapAge {
			old[gap.Entity] = gap.Missing
		}
		if gap.Missing == gap.First {
			err = o.catchUp(ctx, db, gap.Entity, fn)
		} else if _, isOld := old[gap.Entity]; isOld && reported[gap.Entity] != gap.Missing {
			o.guard.log.Warn("entity waits for a version", "entity", gap.Entity, "missing", gap.Missing,
				"first_kept", gap.First, "kept", gap.Kept, "age", gap.Age)
		}
		if err != nil {
			break
		}
	}
	if err != nil {
		if ctx.Err() == nil {
			o.guard.log.Warn("watch failed, trying again later", "error", err)
		}
		return reported
	}
	o.oldGaps.Store(int64(len(old)))
	return old
}
