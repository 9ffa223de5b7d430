package ledgertest

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"
	"time"
)

// phases: a server chooses by its statistics how to read a table, and prefers to read a small one
// whole. So statements by key are sent to tables of several sizes, under statistics gathered at
// several sizes, beside rows of open transactions: a statement that reads those rows as well waits
// for them.
func (k *keyed) phases() []phase {
	if k.OnePlan {
		return []phase{{0, []int{5}}}
	}
	largest, few := full, []int{0, 1, 5}
	growing := append(few, full)
	if k.Scanned != nil && k.large > full {
		largest, growing = k.large, append(growing, k.large)
	}
	if k.Gather == "" {
		return []phase{{0, growing}}
	}
	return []phase{{0, growing}, {largest, append([]int{largest}, few...)}}
}

type phase struct {
	statistics int   // the number of rows when they were gathered
	rows       []int // the numbers of rows after that, in this order
}

// full is how many rows a full table has.
const full = 1000

// keptPlans is how often a statement is executed on an empty table, so that a server keeps a plan
// made for that (PostgreSQL may keep one after five executions).
const keptPlans = 6

// A keyed is a set of tables, with statements that find their rows by key.
type keyed struct {
	Harness
	db     *sql.DB // has one connection, whose reads Scanned counts, and which keeps plans
	others *sql.DB
	tables []string

	// large is the size from which Scanned counts. To read a whole smaller table for a few keys may
	// be right: PostgreSQL has 1,000 rows of a ledger in eight pages, 1,000 keys of an inbox in
	// eleven. Under the statistics of one row it expects the index to cost as much as twelve (seen
	// with EXPLAIN).
	large int

	have  int
	add   func(t *testing.T, n int) // adds that many rows to each table
	empty func(t *testing.T)        // removes all rows

	// steps returns statements, and may prepare rows for them.
	steps func(t *testing.T) []step
	// open begins transactions that hold rows other than the steps' rows.
	open func(t *testing.T) []*sql.Tx
}

// A step is a statement by key, or several with their transaction.
type step struct {
	what  string
	do    func(ctx context.Context) error
	whole int // how many whole tables the step may read
}

func (k *keyed) run(t *testing.T) {
	for _, p := range k.phases() {
		k.resize(t, p.statistics)
		k.gather(t)
		for _, rows := range p.rows {
			k.resize(t, rows)
			t.Run(fmt.Sprintf("%d rows, the statistics of %d", rows, p.statistics), func(t *testing.T) {
				k.rounds(t)
				for n := 1; rows == 0 && n < keptPlans && !t.Failed(); n++ {
					k.rounds(t)
				}
			})
		}
	}
}

func (k *keyed) resize(t *testing.T, rows int) {
	t.Helper()
	if rows < k.have || k.have == 0 {
		k.empty(t)
		k.have = 0
	}
	if rows > k.have {
		k.add(t, rows-k.have)
		k.have = rows
	}
}

func (k *keyed) gather(t *testing.T) {
	t.Helper()
	if k.Gather == "" {
		return
	}
	for _, table := range k.tables {
		_, err := k.db.ExecContext(t.Context(), fmt.Sprintf(k.Gather, table))
		check(t, err, "gather the statistics of "+table)
	}
}

// mayWait is in how many rounds a step may wait. A statement that reads rows of others waits for
// them each time. InnoDB may also block an insert next to a locked row: at REPEATABLE READ a row
// that is the first of its page is locked with the gap before it. That depends on the pages, which
// change while deleted rows are removed.
const mayWait = 2

// rounds runs all steps, and runs them again if one has waited.
func (k *keyed) rounds(t *testing.T) {
	t.Helper()
	waited := k.round(t)
	for n := 0; n < mayWait && len(waited) > 0 && !t.Failed(); n++ {
		t.Logf("waited for other transactions' rows, and run again: %q", waited)
		again := k.round(t)
		waited = slices.DeleteFunc(waited, func(what string) bool { return !slices.Contains(again, what) })
	}
	for _, what := range waited {
		t.Errorf("%s: waits for other transactions' rows", what)
	}
}

// round runs all steps beside one open transaction, which ends when they are done, and returns the
// steps that have waited for it. If a step waits, the transaction ends, and the next step gets
// another one.
func (k *keyed) round(t *testing.T) (waited []string) {
	t.Helper()
	steps := k.steps(t)
	open := k.openBeside(t)
	for _, s := range steps {
		before := k.scanned(t)
		done := beside(func() (struct{}, error) { return struct{}{}, s.do(t.Context()) })
		err, waits := k.await(t, done)
		if waits {
			waited = append(waited, s.what)
			end(t, open)
			_, err = next(t, s.what, done)
			open = k.openBeside(t)
		}
		if err != nil {
			t.Errorf("%s: %v", s.what, err)
		}
		limit := k.large/2 + s.whole*k.large
		if read := k.scanned(t) - before; read > limit {
			t.Errorf("%s: read %d rows of tables of %d", s.what, read, k.have)
		}
	}
	end(t, open)
	return waited
}

func (k *keyed) openBeside(t *testing.T) []*sql.Tx {
	t.Helper()
	if k.OneWriter {
		return nil
	}
	return k.open(t)
}

func end(t *testing.T, open []*sql.Tx) {
	t.Helper()
	for _, tx := range open {
		check(t, tx.Rollback(), "roll back the open transaction")
	}
}

// scanned calls Harness.Scanned if its result is meaningful.
func (k *keyed) scanned(t *testing.T) (n int) {
	t.Helper()
	if k.Scanned == nil || k.have < k.large {
		return 0
	}
	n, err := k.Scanned(t.Context(), k.db)
	check(t, err, "ask for the scanned rows")
	return n
}

// lasting is for how long the server must report a session that waits for a lock. A statement that
// waits for an open transaction waits until its end.
const lasting = 2 * time.Second

// await returns the error from done, or that the statement waits: the server reports a wait for a
// lock, or, if it reports none, done has returned nothing for long.
func (k *keyed) await(t *testing.T, done <-chan reply[struct{}]) (err error, waits bool) {
	t.Helper()
	limit := time.After(wait)
	tick := time.NewTicker(lasting / 20)
	defer tick.Stop()
	var since time.Time // when the wait was first seen
	for {
		select {
		case r := <-done:
			return r.err, false
		case <-limit:
			return nil, true
		case <-tick.C:
		}
		if k.Waiting == "" {
			continue
		}
		var waiting int
		check(t, k.others.QueryRowContext(t.Context(), k.Waiting).Scan(&waiting), "count the waiting sessions")
		switch {
		case waiting == 0:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > lasting:
			return nil, true
		}
	}
}

// oneConnection returns a pool with one connection.
func oneConnection(connect func() *sql.DB) *sql.DB {
	db := connect()
	db.SetMaxOpenConns(1)
	return db
}

// within runs fn in a transaction, and commits.
func within(ctx context.Context, db *sql.DB, fn func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

// cancelIn runs a Cancel in transactions of its own until one does not meet a conflict.
func cancelIn(ctx context.Context, db *sql.DB, conflict func(error) bool, cancel func(tx *sql.Tx) (bool, error)) (done bool, err error) {
	for {
		err = within(ctx, db, func(tx *sql.Tx) (err error) {
			done, err = cancel(tx)
			return err
		})
		if err == nil || conflict == nil || !conflict(err) {
			return done, err
		}
	}
}

// must returns an error unless got is want.
func must[T comparable](what string, got, want T, err error) error {
	if err == nil && got != want {
		err = fmt.Errorf("%s is %v, must be %v", what, got, want)
	}
	return err
}
