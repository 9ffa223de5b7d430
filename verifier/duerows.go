package verifier

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

const (
	// dueOften and dueRarely bound the time between looks at the ledger; dueIdle is this time while no
	// row has been due yet. A delayed message is late by this time at most, plus less than a quarter
	// of a second. Two slow looks are followed by a pause of recentShare times the shorter one: so a
	// delayed message is less than a second late even if each look takes 30 ms. The walk through all
	// due rows pauses for allShare times its duration.
	dueOften    = 250 * time.Millisecond
	dueRarely   = 500 * time.Millisecond
	dueIdle     = 700 * time.Millisecond
	recentShare = 20
	allShare    = 50
	dueMost     = time.Minute // the longest pause, however long a look has taken
	// dueWindow is how far before the last look a walk through the recent due rows begins. fullLook is
	// the shortest time between two walks through all due rows, and fullPatience the longest time for
	// a page of such a walk.
	dueWindow    = 10 * time.Second
	fullLook     = 5 * time.Second
	fullPatience = 5 * time.Second
	// fullReach bounds how long before the present a walk through all rows continues after a place
	// where even one row takes too long. Each further such place divides this time by reachStep.
	fullReach = dueWindow * reachStep * reachStep * reachStep * reachStep // a week
	reachStep = 16
	// dueLimit bounds a page of a walk: no database's statement takes fewer rows. duePages bounds the
	// pages of a walk in one look. A look begins no further page after pagesTime. morePages
	// is the number of pages that the walk through all rows reads when the staging queue has room for
	// more messages.
	dueLimit  = 500
	duePages  = 10
	morePages = stagedLimit / dueLimit
	pagesTime = time.Second
	// candidatesLimit bounds the remembered rows. unpublishedLimit is the number of further remembered
	// rows of which no copy can exist.
	candidatesLimit  = 10_000
	unpublishedLimit = 2 * duePages * dueLimit

	// seenBefore is how long before a marker's look a row must have been seen: the time in which its
	// sender publishes after its COMMIT.
	seenBefore = 500 * time.Millisecond
)

// dueRows searches the ledger for carried rows whose stage time has come, and remembers them as
// candidates for staging. It walks through the recent rows often and through all rows seldom, so
// neither a backlog nor a slow walk delays a row that becomes due now. Only the rounds of a stager
// call it, except state.
type dueRows struct {
	ledger    driver.RecordedRows
	running   sideCall
	carried   *carriedSet
	undeleted func() map[uuid.UUID]bool // rows of delivered messages that could not be deleted
	queues    *ownQueues

	candidates  map[uuid.UUID]candidate
	unstageable unstageable
	everDue     bool // a row has been due at least once
	wasBlocked  bool // publishing was blocked: rows that were seen before no longer count

	at       time.Time     // the database's time of the last look
	looked   time.Time     // our time of it
	took     time.Duration // duration of the last look
	nextLook time.Time
	recent   driver.DueRow // where the walk through the recent rows continues; zero: at its begin

	all      driver.DueRow // where the walk through all rows continues; zero: at its begin
	allNext  time.Time     // when it continues
	allMore  time.Time     // when it continues if there is room for more messages than are known
	allLimit int           // of the pages of this walk
	reach    time.Duration // how long before the present it continues after the next slow place

	mu      sync.Mutex
	count   int           // of the candidates, after the last look
	overdue time.Duration // how long the first row was overdue then
	counted time.Time     // when count and overdue were set
}

// A candidate is a row whose stage time has come.
type candidate struct {
	row  driver.DueRow
	seen time.Time // when it was first seen with this stage time, by the database's clock
	gone bool      // a marker has shown that no queue has a copy
}

// stageable reports whether no queue has a copy of the message.
func (c candidate) stageable() bool { return c.row.Unpublished() || c.gone }

// before reports whether a row was seen long enough before a look.
func (c candidate) before(look time.Time) bool { return !c.seen.After(look.Add(-seenBefore)) }

func newDueRows(r *resources, running sideCall, carried *carriedSet, queues *ownQueues) *dueRows {
	return &dueRows{
		ledger: r.ledger, running: running, carried: carried, undeleted: r.forgetter.rows, queues: queues,
		candidates: make(map[uuid.UUID]candidate), allLimit: dueLimit, reach: fullReach,
	}
}

// search looks for due rows, if it is time. It returns the database's time at the begin of the
// look; zero: there was none.
func (d *dueRows) search(ctx context.Context) (at time.Time, err error) {
	d.wasBlocked = d.wasBlocked || d.queues.blocked()
	if at, err = d.look(ctx); err == nil {
		var all time.Time
		if all, err = d.readAll(ctx); !all.IsZero() { // a marker need not wait for the next look
			at = all
		}
	}
	if !at.IsZero() {
		d.store(at, time.Now())
	}
	return at, err
}

// look walks through the recent rows, if it is time. An unfinished walk continues in the next look,
// so a look costs little in any backlog.
func (d *dueRows) look(ctx context.Context) (at time.Time, err error) {
	began := time.Now()
	if began.Before(d.nextLook) {
		return at, nil
	}
	if at, err = d.readRecent(ctx); err != nil {
		at = time.Time{}
	} else {
		d.at, d.looked = at, began
		// A single slow look means that the machine was busy for a moment, which is no reason to pause.
		took := time.Since(began)
		d.nextLook = time.Now().Add(pauseAfter(min(took, d.took), recentShare))
		d.took = took
	}
	interval := dueOften + rand.N(dueRarely-dueOften)
	if !d.everDue && !d.carried.ever.Load() {
		interval = dueIdle
	}
	if next := time.Now().Add(interval); d.nextLook.Before(next) {
		d.nextLook = next
	}
	return at, err
}

// pauseAfter returns the pause after a walk with a given duration.
func pauseAfter(took time.Duration, share int) time.Duration {
	return min(time.Duration(share)*took, dueMost)
}

// readRecent updates the candidates with the recent due rows.
func (d *dueRows) readRecent(ctx context.Context) (at time.Time, err error) {
	begin := d.at
	if begin.IsZero() { // the database's time is unknown yet
		begin = time.Now().Add(-clockMargin)
	}
	if begin = begin.Add(-dueWindow); d.recent.StageAt.Before(begin) {
		d.recent = driver.DueRow{StageAt: begin}
	}
	at, _, err = d.walk(ctx, &d.recent, dueLimit, duePages, ledgerTimeout)
	return at, err
}

// readAll continues the walk through all due rows, if it is time. After rows that can be staged the
// pause ends as soon as there is room for more of them: so a backlog is staged as fast as it is
// forwarded. readAll returns the database's time at the begin.
func (d *dueRows) readAll(ctx context.Context) (at time.Time, err error) {
	began, pages := time.Now(), duePages
	if d.at.IsZero() {
		return at, nil
	}
	if began.Before(d.allNext) {
		if began.Before(d.allMore) || d.moreStageable(stagedLimit-1) {
			return at, nil
		}
		pages = morePages
	}
	at, share, err := d.walk(ctx, &d.all, d.allLimit, pages, fullPatience)
	pause := pauseAfter(time.Since(began), allShare)
	shorter := time.Duration(float64(pause) * (1 - share))
	switch {
	case d.at.IsZero(): // the walk restarts
		return time.Time{}, err
	case err != nil:
		pause = max(pause, fullLook)
		shorter = pause
		d.passSlowPlace()
	default:
		d.allLimit = min(8*d.allLimit, dueLimit)
	}
	if d.all == (driver.DueRow{}) {
		pause = max(pause, fullLook)
		shorter = pause
		d.reach = min(reachStep*d.reach, fullReach) // further back, for the next slow place
		d.unstageable.removeGone()
	}
	d.allNext, d.allMore = time.Now().Add(pause), time.Now().Add(shorter)
	return at, err
}

// passSlowPlace is called after a page that has failed. On its way to the next due rows the
// database may pass very many deleted ones, which it keeps as long as an old transaction is open.
// So the next page reads a single row. If that fails too, the walk continues at a later stage time,
// or ends if there is none before the recent rows.
func (d *dueRows) passSlowPlace() {
	if d.allLimit > 1 {
		d.allLimit = 1
		return
	}
	for d.reach > d.at.Sub(d.all.StageAt)/2 {
		d.reach /= reachStep
	}
	if d.reach > dueWindow {
		d.all = driver.DueRow{StageAt: d.at.Add(-d.reach)}
	} else {
		d.all, d.reach = driver.DueRow{}, dueWindow
	}
}

// walk reads due rows from a position on and moves the position, at the end to zero. It returns the
// database's time of the first page, and the share of rows that can be staged at once.
func (d *dueRows) walk(ctx context.Context, position *driver.DueRow, limit, most int, patience time.Duration) (first time.Time, share float64, err error) {
	// A candidate between the begin and the end of the walk is forgotten if the walk has not read its row.
	from, upTo, seen := position.StageAt, time.Time{}, make(map[uuid.UUID]bool)
	defer func() {
		for id, c := range d.candidates {
			if at := c.row.StageAt; !seen[id] && at.After(from) && at.Before(upTo) {
				delete(d.candidates, id)
			}
		}
	}()
	began, stageable := time.Now(), 0
	for pages := 0; pages < most && (pages == 0 || time.Since(began) < pagesTime); pages++ {
		page, at, err := d.readPage(ctx, *position, limit, patience)
		if err != nil {
			return first, 0, err
		}
		if first.IsZero() {
			if first = at; at.Before(d.at) {
				return first, 0, d.restart(at)
			}
			if d.wasBlocked { // a sender may have published only now
				for id, c := range d.candidates {
					d.candidates[id] = candidate{row: c.row, seen: at}
				}
				d.wasBlocked = d.queues.blocked()
			}
		}
		for _, row := range page {
			seen[row.ID] = true
			if row.Unpublished() {
				stageable++
			}
			d.see(row, at)
		}
		if len(page) < limit {
			*position, upTo = driver.DueRow{}, at
			break
		}
		*position = page[limit-1]
		upTo = position.StageAt
	}
	return first, float64(stageable) / float64(max(1, len(seen))), nil
}

// restart forgets all rows when the database's clock has gone back, as in a failover to another
// server: the old times no longer show which rows were seen before a marker.
func (d *dueRows) restart(at time.Time) error {
	err := fmt.Errorf("the database's clock went back by %v; searching all due rows again", d.at.Sub(at))
	clear(d.candidates)
	d.at, d.allNext, d.allMore, d.recent, d.all = time.Time{}, time.Time{}, time.Time{}, driver.DueRow{}, driver.DueRow{}
	d.allLimit, d.reach = dueLimit, fullReach
	return err
}

func (d *dueRows) readPage(ctx context.Context, after driver.DueRow, limit int, patience time.Duration) (page []driver.DueRow, at time.Time, err error) {
	type answer struct {
		page []driver.DueRow
		at   time.Time
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errNoAnswer)
	defer cancel()
	a, err := inTime(ctx, d.running, ledgerTimeout, func(ctx context.Context) (a answer, err error) {
		a.page, a.at, err = d.ledger.Due(ctx, after, limit)
		return a, err
	})
	if err != nil {
		return nil, at, fmt.Errorf("search carried messages to stage: %w", err)
	}
	return a.page, a.at, nil
}

// see notes a due row. A new stage time counts as another row, because a verifier held the message.
// In a backlog beyond the limit only rows that can be staged at once are noted.
func (d *dueRows) see(row driver.DueRow, at time.Time) {
	d.everDue = true
	d.unstageable.see(row.ID)
	limit := candidatesLimit
	if row.Unpublished() {
		limit += unpublishedLimit
	}
	if c, ok := d.candidates[row.ID]; ok && c.row.StageAt.Equal(row.StageAt) || !ok && len(d.candidates) >= limit {
		return
	}
	d.candidates[row.ID] = candidate{row: row, seen: at}
}

// moreStageable reports whether more than n candidates can be staged. It stops counting there,
// because stager.stage calls it in every round while the targets of a backlog take nothing.
func (d *dueRows) moreStageable(n int) bool {
	for _, c := range d.candidates {
		if c.stageable() {
			if n--; n < 0 {
				return true
			}
		}
	}
	return false
}

// stageable returns the candidates that can be staged, the longest due first.
func (d *dueRows) stageable() (rows []driver.DueRow) {
	for _, c := range d.candidates {
		if c.stageable() {
			rows = append(rows, c.row)
		}
	}
	slices.SortFunc(rows, func(a, b driver.DueRow) int {
		return cmp.Or(a.StageAt.Compare(b.StageAt), bytes.Compare(a.ID[:], b.ID[:]))
	})
	return rows
}

// needsMarker reports whether a marker that is sent after a look may show that a row has no copy.
func (d *dueRows) needsMarker(look time.Time) bool {
	left := d.undeleted()
	for id, c := range d.candidates {
		if c.before(look) && !left[id] && !d.carried.has(id) {
			return true
		}
	}
	return false
}

// goneBy notes the rows that have no copy in a queue, after a marker of that look.
func (d *dueRows) goneBy(look time.Time) {
	if d.wasBlocked {
		return
	}
	left := d.undeleted()
	for id, c := range d.candidates {
		if c.before(look) && !left[id] && !d.carried.has(id) {
			c.gone = true
			d.candidates[id] = c
		}
	}
}

// noteCopy notes that a candidate's message has a copy, so the row needs another marker.
func (d *dueRows) noteCopy(row driver.DueRow) {
	d.candidates[row.ID] = candidate{row: row, seen: d.candidates[row.ID].seen}
}

// isAhead reports whether a look lies in the future, by the database's clock as last seen.
func (d *dueRows) isAhead(look time.Time) bool { return look.After(d.at.Add(time.Since(d.looked))) }

// store stores the result of the last look, for state.
func (d *dueRows) store(at, now time.Time) {
	var first time.Time
	for _, c := range d.candidates {
		if first.IsZero() || c.row.StageAt.Before(first) {
			first = c.row.StageAt
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count, d.overdue, d.counted = len(d.candidates), 0, now
	if !first.IsZero() {
		d.overdue = max(0, at.Sub(first))
	}
}

// state returns how many candidates there were at the last look, and for how long the first of them
// has been due.
func (d *dueRows) state(now time.Time) (due int, overdue time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.count > 0 {
		due, overdue = d.count, d.overdue+now.Sub(d.counted)
	}
	return due, overdue
}
