package versions

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"
)

// watched bounds the entities that a round of Watch looks at.
const watched = 1000

// Watch checks the kept events every OrderedOptions.GapAge, until ctx ends. It handles with fn the
// events that are due, for example after a Skip or when a kept event had failed. It logs a warning,
// once, for each entity that has waited for longer than GapAge for a missing version. It checks the
// thousand entities that have waited longest. In each round it handles due events for Options.Hold
// at most, and the next round begins behind the entity at which that time was over: so an entity
// whose handling fails or hangs does not delay the others for good.
//
// Run it beside the consumers, in one of the processes that share the work or in each. Each process
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

// OldGaps returns how many entities had waited for longer than OrderedOptions.GapAge at the last
// check of Watch; a thousand means a thousand or more.
func (o *Ordered) OldGaps() int { return int(o.oldGaps.Load()) }

// A watch is the state that one round leaves for the next.
type watch struct {
	reported map[string]int64 // entities whose gaps have been logged, with the missing version
	after    string           // the entity at which the time was over
}

// round checks once.
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

// behind moves the gaps behind an entity to the front.
func behind(gaps []Gap, entity string) []Gap {
	first := 1 + slices.IndexFunc(gaps, func(gap Gap) bool { return gap.Entity == entity })
	return slices.Concat(gaps[first:], gaps[:first])
}

// catchUpAll handles the due events of each entity until ctx ends: then it returns the current
// entity. An entity that fails delays no other, unless the database is unavailable.
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
