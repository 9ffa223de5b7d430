package verifier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/verifier/internal/pipe"
)

const (
	forgetLimit = 1000
	// forgetGather is the pause before a DELETE. No message waits for it, and every statement and ack
	// that it saves leaves the database and the broker more time for messages.
	forgetGather = 30 * time.Millisecond
	// forgetPatience is how long safe messages wait for their DELETE before they are acked without it.
	forgetPatience = time.Second

	// retryIdle, retryFirst and retryLongest are the times between two attempts to delete remaining
	// rows: retryIdle while there are none, the other two bound the backoff while all of them are
	// locked.
	retryIdle    = 500 * time.Millisecond
	retryFirst   = 100 * time.Millisecond
	retryLongest = 15 * time.Second

	// undeletedLimit bounds the remembered rows. undeletedAge is how long a plain row is remembered: an
	// older one may be swept.
	undeletedLimit = 100_000
	undeletedAge   = driver.MinSweepAge

	// undeletedLook is the time between searches for rows whose stage time is to be moved on.
	undeletedLook = time.Second
)

// An undeletedRow is the row of a safe message that is not deleted yet.
type undeletedRow struct {
	id      uuid.UUID
	since   time.Time
	carried *heldCarried // nil: the row carries no message
}

func undeletedRows(messages []*message) []undeletedRow {
	rows, now := make([]undeletedRow, len(messages)), time.Now()
	for i, m := range messages {
		rows[i] = undeletedRow{id: m.staged.ID, since: now}
		if !m.staged.Carried {
			continue
		}
		rows[i].carried = newHeldCarried(m, now)
		if held := m.carried; held != nil {
			rows[i].carried.touched.Store(held.touched.Load())
		}
	}
	return rows
}

func idsOf(rows []undeletedRow) []uuid.UUID {
	ids := make([]uuid.UUID, len(rows))
	for i, r := range rows {
		ids[i] = r.id
	}
	return ids
}

// A forgetter deletes the rows of safe messages (Forget of package driver), and remembers rows that
// could not be deleted. It outlives sessions, and retries between them too. A session moves on the
// stage times of remembered carried rows (touchHeld), so that no verifier stages their messages again.
// When the process ends, these rows stay: the sweep removes plain ones, and carried messages are
// delivered again.
//
// One DELETE runs at a time. The forgetter does not wait for a DELETE that hangs, and begins no
// other one meanwhile.
type forgetter struct {
	ledger    driver.RecordedRows
	log       *slog.Logger
	abandoned *atomic.Int64 // rows that are no longer remembered

	running   chan struct{} // holds an element while a DELETE runs
	lastError               // of a DELETE

	mu        sync.Mutex
	undeleted []undeletedRow // the next to retry first
	wait      *backoff.ExponentialBackOff
	reported  time.Time      // when the log last reported rows that were given up
	toTouch   []*heldCarried // rows whose stage time was due at the last search
	searched  time.Time      // when that search was
}

func newForgetter(ledger driver.RecordedRows, log *slog.Logger, abandoned *atomic.Int64) *forgetter {
	return &forgetter{ledger: ledger, log: log, abandoned: abandoned, running: make(chan struct{}, 1), wait: pipe.NewBackOff(retryFirst, retryLongest)}
}

var errLocked = errors.New("another transaction has locked them")

// errNoDelete: the database did not answer a DELETE in time.
var errNoDelete = errors.New("the database has not answered a DELETE in time")

// delete returns when the rows are deleted or remembered: after forgetPatience at the latest, and
// at once while DELETEs fail.
func (f *forgetter) delete(ctx context.Context, rows []undeletedRow) {
	err := f.failure()
	if err == nil {
		var locked []uuid.UUID
		if locked, err = f.try(ctx, idsOf(rows), forgetPatience); err == nil {
			rows = rowsWith(rows, locked)
		}
	}
	f.remember(rows, err)
}

// rowsWith returns the rows with these IDs.
func rowsWith(rows []undeletedRow, ids []uuid.UUID) (some []undeletedRow) {
	if len(ids) == 0 {
		return nil
	}
	are := setOf(ids)
	for _, r := range rows {
		if are[r.id] {
			some = append(some, r)
		}
	}
	return some
}

// try deletes rows and waits for the answer for patience. It returns the locked rows.
func (f *forgetter) try(ctx context.Context, ids []uuid.UUID, patience time.Duration) (left []uuid.UUID, err error) {
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case f.running <- struct{}{}:
	case <-late.C:
		return nil, f.failed(errNoDelete)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	type result struct {
		left []uuid.UUID
		err  error
	}
	ended := make(chan result, 1)
	go func() { // a driver may ignore its context
		defer func() { <-f.running }()
		asking, cancel := context.WithTimeout(ctx, ledgerTimeout)
		defer cancel()
		left, err := f.ledger.Forget(asking, ids)
		ended <- result{left, err}
	}()
	select {
	case r := <-ended:
		if ctx.Err() != nil && r.err != nil { // the session's end, no failure of the database
			return nil, r.err
		}
		return r.left, f.failed(r.err)
	case <-late.C:
		return nil, f.failed(errNoDelete)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// count returns the number of remaining rows.
func (f *forgetter) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.undeleted)
}

// rows returns the IDs of the remaining rows.
func (f *forgetter) rows() map[uuid.UUID]bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return setOf(idsOf(f.undeleted))
}

// untouched returns at most limit carried rows whose stage time is to be moved on.
func (f *forgetter) untouched(now time.Time, limit int) []*heldCarried {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.toTouch) == 0 && now.Sub(f.searched) >= undeletedLook {
		f.searched = now
		for _, r := range f.undeleted {
			if r.carried != nil && r.carried.touchDue(now) {
				f.toTouch = append(f.toTouch, r.carried)
			}
		}
	}
	n := min(len(f.toTouch), limit)
	next := f.toTouch[:n]
	f.toTouch = f.toTouch[n:]
	return next
}

// remember remembers rows of safe messages that could not be deleted, and why; nil: they are locked.
func (f *forgetter) remember(rows []undeletedRow, why error) {
	if len(rows) == 0 {
		return
	}
	if why == nil {
		why = errLocked
	}
	f.mu.Lock()
	room := min(undeletedLimit-len(f.undeleted), len(rows))
	first := len(f.undeleted) == 0
	f.undeleted = append(f.undeleted, rows[:room]...)
	if first {
		f.wait.Reset()
	}
	f.mu.Unlock()
	if first {
		level := slog.LevelWarn
		if errors.Is(why, errLocked) { // a lock ends by itself; on SQLite any writer locks all rows
			level = slog.LevelInfo
		}
		f.log.Log(context.Background(), level, "rows of delivered messages not deleted yet; retrying", "rows", len(rows), "message_id", rows[0].id.String(), "reason", why)
	}
	f.giveUp(rows[room:])
}

// giveUp counts rows that are no longer remembered. The sweep removes the plain ones.
func (f *forgetter) giveUp(rows []undeletedRow) {
	if len(rows) == 0 {
		return
	}
	all := f.abandoned.Add(int64(len(rows)))
	f.mu.Lock()
	report := time.Since(f.reported) >= time.Minute
	if report {
		f.reported = time.Now()
	}
	f.mu.Unlock()
	if report {
		f.log.Error("rows of delivered messages stay in the ledger; the sweep removes plain ones, and carried messages are delivered again", "rows", all, "message_id", rows[0].id.String())
	}
}

// retry tries the next remaining rows, and returns when to try again.
func (f *forgetter) retry(ctx context.Context) (next time.Duration, err error) {
	ids := f.nextToRetry()
	if len(ids) == 0 {
		return retryIdle, nil
	}
	locked, err := f.try(ctx, ids, ledgerTimeout)
	if err != nil {
		f.mu.Lock()
		f.removeTried(len(ids), ids)
		f.mu.Unlock()
		return 0, fmt.Errorf("forget: %w", err)
	}
	return f.noteDeleted(len(ids), locked), nil
}

// nextToRetry returns the next rows to try, and gives up plain rows that are too old.
func (f *forgetter) nextToRetry() []uuid.UUID {
	f.mu.Lock()
	var old []undeletedRow
	f.undeleted = slices.DeleteFunc(f.undeleted, func(r undeletedRow) bool {
		over := r.carried == nil && time.Since(r.since) >= undeletedAge
		if over {
			old = append(old, r)
		}
		return over
	})
	ids := idsOf(f.undeleted[:min(len(f.undeleted), forgetLimit)])
	if len(ids) == 0 {
		_ = f.failed(nil) // the next DELETE shows whether the database still fails
	}
	f.mu.Unlock()
	f.giveUp(old)
	return ids
}

// noteDeleted removes the first n rows, which were tried, appends the locked ones, and returns when to
// try again.
func (f *forgetter) noteDeleted(n int, locked []uuid.UUID) (next time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removeTried(n, locked)
	switch {
	case len(f.undeleted) == 0:
		f.log.Info("all rows of delivered messages are deleted")
		return retryIdle
	case len(locked) < n:
		f.wait.Reset()
	}
	return f.wait.NextBackOff()
}

// removeTried removes the first n rows, and appends the ones whose IDs are in stay. The caller holds mu.
func (f *forgetter) removeTried(n int, stay []uuid.UUID) {
	tried := f.undeleted[:n] // other goroutines only append rows
	f.undeleted = append(slices.Clone(f.undeleted[n:]), rowsWith(tried, stay)...)
}

// tryLast tries the remaining rows once more, before the process forgets them.
func (f *forgetter) tryLast() {
	const patience = 2 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for n := f.count(); n > 0 && ctx.Err() == nil; {
		if _, err := f.retry(ctx); err != nil {
			break
		}
		if f.count() == n {
			break
		}
		n = f.count()
	}
	if n := f.count(); n > 0 {
		f.log.Warn("rows of delivered messages stay in the ledger; the sweep removes plain ones, and carried messages are delivered again", "rows", n)
	}
}
