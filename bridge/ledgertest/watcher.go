package ledgertest

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/inspection"
)

// runWatch tests every promise of inspect.Watcher on the ledger's watcher.
func runWatch(t *testing.T, d *database) {
	w := &watching{database: d}
	w.watcher, w.watched = w.watch(t)
	run(t, d.Harness, w, []test[*watching]{
		{"an open transaction that has recorded an ID is its holder until it ends", testHolders},
		{"a cancelled question returns promptly", testHoldersCancelled},
		{"questions cost no connection", testHoldersCostNoConnection},
		{"an open transaction is listed above its age, up to the limit", testOpenTransactions},
	}, []test[*watching]{
		{"many ask at once, beside a settle, and all get the holder", testHoldersMany},
		{"an invalid question, and one without a second connection, is refused", testOpenTransactionsRefused},
	}, func(t *testing.T) {
		d.expectIdle(t)
		eventually(t, "no connection of the watcher is in use", func() bool { return w.watched.Stats().InUse == 0 })
	})
}

// A watching is a database that shows the holders of a row.
type watching struct {
	*database
	watcher inspect.Watcher
	watched *sql.DB // the watcher's pool
}

// watch returns a watcher on a pool of its own.
func (w *watching) watch(t *testing.T) (inspect.Watcher, *sql.DB) {
	t.Helper()
	ledger, watcher, err := w.Watch(t.Context(), w.connect())
	check(t, err, "watch")
	return watcher, ledger.DB()
}

// An opened is an open transaction that has recorded IDs.
type opened struct {
	*sql.Tx
	session       string // "" if unknown
	before, after time.Time
}

// opened begins a transaction, and notes the database's clock before and after.
func (w *watching) opened(t *testing.T, ids ...uuid.UUID) opened {
	t.Helper()
	o := opened{before: w.now(t), Tx: w.begin(t, ids...)}
	o.after = w.now(t)
	if w.SessionID != "" {
		check(t, o.QueryRowContext(t.Context(), w.SessionID).Scan(&o.session), "read the session")
	}
	return o
}

// end rolls back. Not every driver waits for the rollback at the end of a test's context.
func (w *watching) end(t *testing.T, tx opened) {
	t.Helper()
	check(t, tx.Rollback(), "roll back")
}

func (w *watching) now(t *testing.T) time.Time {
	t.Helper()
	var ms int64
	check(t, w.sender.DB().QueryRowContext(t.Context(), w.Clock).Scan(&ms), "read the clock")
	return time.UnixMilli(ms)
}

// clockSlack is by how much a holder's time may be wrong.
const clockSlack = 5 * time.Second

// expectHolder fails unless the only holder is that transaction.
func (w *watching) expectHolder(t *testing.T, got []inspect.Holder, want opened) {
	t.Helper()
	if len(got) != 1 {
		t.Fatalf("the holders are %+v, must be one", got)
	}
	h := got[0]
	if h.Session == "" || want.session != "" && h.Session != want.session {
		t.Errorf("the session is %q, must be %q", h.Session, want.session)
	}
	if h.Since.Before(want.before.Add(-clockSlack)) || h.Since.After(want.after.Add(clockSlack)) {
		t.Errorf("the transaction began at %v, must be between %v and %v", h.Since, want.before, want.after)
	}
	if h.Login == "" {
		t.Error("it has no login")
	}
	if w.Program != "" && h.Program != w.Program {
		t.Errorf("the program is %q, must be %q", h.Program, w.Program)
	}
	if h.State == "" {
		t.Error("it has no state")
	}
}

func (w *watching) holders(t *testing.T, id uuid.UUID) []inspect.Holder {
	t.Helper()
	found, err := w.ask(t, id)
	check(t, err, "ask for holders")
	return found
}

// ask calls Holders. A slow machine may not see the holders in time; that is an error of its own,
// and tried again.
func (w *watching) ask(t *testing.T, id uuid.UUID) (found []inspect.Holder, err error) {
	for range 10 {
		if found, err = w.watcher.Holders(bounded(t), id); !errors.Is(err, inspection.ErrNotLooked) {
			break
		}
	}
	return found, err
}

func (w *watching) expectNoHolder(t *testing.T, id uuid.UUID) {
	t.Helper()
	if found := w.holders(t, id); len(found) > 0 {
		t.Errorf("the holders are %+v, must be none", found)
	}
}

// Each ID has its own holder.
func testHolders(t *testing.T, w *watching) {
	a, b, unknown := newIDs(3), newID(), newID()
	commits, rollsBack := w.opened(t, a...), w.opened(t, b)
	w.expectHolder(t, w.holders(t, a[2]), commits)
	w.expectHolder(t, w.holders(t, b), rollsBack)
	w.expectNoHolder(t, unknown)
	w.expectCommitted(t, []uuid.UUID{a[2], b, unknown})

	check(t, commits.Commit(), "commit")
	w.expectNoHolder(t, a[2])
	w.expectSettled(t, a[2], driver.Committed)
	w.expectHolder(t, w.holders(t, b), rollsBack)
	w.end(t, rollsBack)
	for _, id := range []uuid.UUID{b, unknown} {
		w.expectNoHolder(t, id)
		w.expectSettled(t, id, driver.RolledBack)
	}
	w.commit(t, b) // nothing blocks it
	w.expectSettled(t, b, driver.Committed)
}

// testHoldersCostNoConnection calls Holders on two connections, which must be the same afterwards.
func testHoldersCostNoConnection(t *testing.T, w *watching) {
	if w.SessionID == "" {
		t.Skip("the session has no name")
	}
	watcher, db := w.watch(t)
	db.SetMaxOpenConns(2)
	db.SetMaxIdleConns(2)
	defer db.SetMaxIdleConns(0) // db may be a part of another pool, which waits for them
	sessions := func() (names []string) {
		for _, tx := range []*sql.Tx{begin(t, db), begin(t, db)} {
			var name string
			check(t, tx.QueryRowContext(t.Context(), w.SessionID).Scan(&name), "read the session")
			names = append(names, name)
			defer func() { check(t, tx.Rollback(), "roll back") }()
		}
		slices.Sort(names)
		return names
	}
	before := sessions()
	id := newID()
	tx := w.opened(t, id)
	asking := &watching{database: w.database, watcher: watcher}
	for range 3 { // each takes a second if the settle waits to its end
		asking.expectHolder(t, asking.holders(t, id), tx)
	}
	w.end(t, tx)
	if after := sessions(); !slices.Equal(after, before) {
		t.Errorf("the sessions were %v, are %v", before, after)
	}
}

func testHoldersMany(t *testing.T, w *watching) {
	id := newID()
	tx := w.opened(t, id)
	settled := beside(func() (driver.Outcome, error) { return settle(t.Context(), w.ledger, id, wait) })
	w.waiting(t, 1)
	answers := make([][]inspect.Holder, 4)
	errs := make([]error, len(answers))
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i], errs[i] = w.ask(t, id) })
	}
	all.Wait()
	check(t, errors.Join(errs...), "ask for holders")
	for _, found := range answers {
		w.expectHolder(t, found, tx)
	}
	check(t, tx.Commit(), "commit")
	outcome, err := next(t, "settle", settled)
	check(t, err, "settle")
	expect(t, "the outcome", outcome, driver.Committed)
	w.expectNoHolder(t, id)
}

func testHoldersCancelled(t *testing.T, w *watching) {
	id := newID()
	tx := w.opened(t, id)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	start := time.Now()
	if found, err := w.watcher.Holders(ctx, id); err == nil || len(found) > 0 {
		t.Errorf("a cancelled question: %v, %v", found, err)
	}
	if took := time.Since(start); took > prompt {
		t.Errorf("it took %v", took)
	}
	w.end(t, tx)
}

func (w *watching) listed(t *testing.T, age time.Duration, limit int) []inspect.Holder {
	t.Helper()
	found, err := w.watcher.OpenTransactions(t.Context(), age, limit)
	check(t, err, "list open transactions")
	return found
}

// lookEvery is how long the suite leaves a database alone between two looks: some databases renew
// their views only then.
const lookEvery = 200 * time.Millisecond

// becomes lists until there are n.
func (w *watching) becomes(t *testing.T, n int, age time.Duration, limit int) []inspect.Holder {
	t.Helper()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	limited := time.After(6 * wait)
	for {
		select {
		case <-tick.C:
		case <-limited:
			t.Fatalf("there are %+v, must be %d", w.listed(t, age, limit), n)
		}
		if found := w.listed(t, age, limit); len(found) == n {
			return found
		}
	}
}

func testOpenTransactions(t *testing.T, w *watching) {
	w.becomes(t, 0, 0, 10) // other tests' transactions are rolled back
	idle := begin(t, w.sender.DB())
	var rows int // it has read, and written nothing
	check(t, idle.QueryRowContext(t.Context(), w.named("SELECT count(*) FROM bridge_ledger")).Scan(&rows), "read")
	first := w.opened(t, newID())
	w.expectHolder(t, w.becomes(t, 1, 0, 10), first)
	if found := w.listed(t, time.Hour, 10); len(found) > 0 {
		t.Errorf("above an hour: %+v", found)
	}
	if !w.Driver {
		w.becomes(t, 1, 2*time.Second, 10) // some databases have the time to the second
	}
	second := w.opened(t, newID())
	found := w.becomes(t, 2, 0, 10)
	if !slices.IsSortedFunc(found, func(a, b inspect.Holder) int { return a.Since.Compare(b.Since) }) {
		t.Errorf("not the oldest first: %+v", found)
	}
	w.expectHolder(t, w.listed(t, 0, 1), first) // the oldest
	check(t, first.Commit(), "commit")
	w.expectHolder(t, w.becomes(t, 1, 0, 10), second)
	w.end(t, second)
	w.becomes(t, 0, 0, 10)
	check(t, idle.Rollback(), "roll back")
}

func testOpenTransactionsRefused(t *testing.T, w *watching) {
	if _, err := w.watcher.OpenTransactions(t.Context(), -1, 10); err == nil {
		t.Error("a negative age is no error")
	}
	for _, limit := range []int{0, -1} {
		if _, err := w.watcher.OpenTransactions(t.Context(), 0, limit); err == nil {
			t.Errorf("a limit of %d is no error", limit)
		}
	}
	// Without a second connection Holders cannot ask: that is no answer.
	id := newID()
	tx := w.opened(t, id)
	narrow, db := w.watch(t)
	db.SetMaxOpenConns(2)
	taken := begin(t, db)
	if found, err := narrow.Holders(t.Context(), id); err == nil {
		t.Errorf("without a second connection: %+v", found)
	}
	check(t, taken.Rollback(), "roll back")
	found, err := narrow.Holders(t.Context(), id)
	check(t, err, "ask for holders")
	w.expectHolder(t, found, tx)
	w.end(t, tx)

	narrowest, db := w.watch(t)
	db.SetMaxOpenConns(1)
	if _, err := narrowest.Holders(t.Context(), newID()); err == nil {
		t.Error("a pool of one connection is no error")
	}
}
