package versions

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"
)

// watched is how many entities a round of Watch looks at.
const watched = 1000

// Watch looks every OrderedOptions.GapAge at the kept events, until ctx ends. It handles
// by fn the events that are due, as after a Skip or where a kept event had failed; and it logs a
// warning, once, for each entity that has waited for longer than GapAge for a version
// that is not there. The thousand entities that have waited longest are looked at. What is
// due is handled for Options.Hold at most in each round, and the next round begins with the
// entity behind the one at which that time was over: so an entity whose handling fails or
// hangs holds up no other of these for good.
//
// Run it beside the consumers, in one of the processes that share the work or in each. Each one
// logs.
func (o *Ordered) Watch(ctx context.Context, db *sql.DB, fn EventFunc) {
	if db == nil || fn == nil {
		panic("versions: Watch needs a database and a function")
	}
	ticker := time.NewTicker(o.opts.GapAge)
	defer ticker.Stop()
	var w watch
	for {
		o.round(ctx, db, fn, &w)
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

// A watch is what one round leaves for the next.
type watch struct {
	reported map[string]int64 // entities whose gaps have been logged, with the version that was missing
	after    string           // the entity at which the time was over
}

// round looks once.
func (o *Ordered) round(ctx context.Context, db *sql.DB, fn EventFunc, w *watch) {
	held, cancel := context.WithTimeout(ctx, o.engine.Opts.Hold)
	defer cancel()
	gaps, err := o.Gaps(held, db, watched)
	if err != nil {
		o.warn(ctx, err)
		return
	}
	old := make(map[string]int64)
	for _, gap := range gaps {
		if gap.Age < o.opts.GapAge {
			continue
		}
		old[gap.Entity] = gap.Missing
		if gap.Missing != gap.First && w.reported[gap.Entity] != gap.Missing {
			o.engine.Log.Warn("entity waits for a version", "entity", gap.Entity, "missing", gap.Missing,
				"first_kept", gap.First, "kept", gap.Kept, "age", gap.Age)
		}
	}
	o.oldGaps.Store(int64(len(old)))
	w.reported = old
	w.after = o.catchUpAll(held, db, behind(gaps, w.after), fn)
}

// behind puts those first that stand behind an entity.
func behind(gaps []Gap, entity string) []Gap {
	first := 1 + slices.IndexFunc(gaps, func(gap Gap) bool { return gap.Entity == entity })
	return slices.Concat(gaps[first:], gaps[:first])
}

// catchUpAll handles what is due of each entity, until ctx ends: then it returns the entity
// that it was at. One that fails holds up no other, unless the database is away.
func (o *Ordered) catchUpAll(ctx context.Context, db *sql.DB, gaps []Gap, fn EventFunc) (at string) {
	for _, gap := range gaps {
		if gap.Missing != gap.First {
			continue
		}
		err := o.catchUp(ctx, db, gap.Entity, fn)
		if err == nil {
			continue
		}
		o.warn(ctx, err)
		switch {
		case ctx.Err() != nil:
			return gap.Entity
		case db.PingContext(ctx) != nil:
			return ""
		}
	}
	return ""
}

func (o *Ordered) warn(ctx context.Context, err error) {
	if !errors.Is(ctx.Err(), context.Canceled) {
		o.engine.Log.Warn("watch failed, trying again later", "error", err)
	}
}
