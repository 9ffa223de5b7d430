package ledgertest

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A keyedLedger is a ledger on one connection.
type keyedLedger struct {
	*database
	db     *sql.DB
	ledger driver.Ledger
	rows   []uuid.UUID
}

func testLedgerByKey(t *testing.T, d *database) {
	l := &keyedLedger{database: d, db: oneConnection(d.connect)}
	var err error
	l.ledger, err = d.Open(t.Context(), l.db)
	check(t, err, "open")
	k := keyed{Harness: d.Harness, db: l.db, others: d.sender.DB(), large: 5 * full,
		add: l.add, empty: l.empty, steps: l.steps, open: l.open}
	if d.Insert == nil {
		k.tables = []string{d.named("bridge_ledger"), d.named("bridge_identity")}
	} else {
		k.tables = []string{d.Table, d.named("bridge_identity")}
	}
	k.run(t)
	l.empty(t)
}

func (l *keyedLedger) empty(t *testing.T) {
	t.Helper()
	l.rows = nil
	table := l.Table
	if l.Insert == nil {
		table = l.named("bridge_ledger")
	}
	if table == "" {
		return // the application's rows stay
	}
	_, err := l.db.ExecContext(t.Context(), "DELETE FROM "+table)
	check(t, err, "empty "+table)
}

func (l *keyedLedger) add(t *testing.T, n int) {
	t.Helper()
	ids := newIDs(n)
	for some := range slices.Chunk(ids, full) {
		check(t, within(t.Context(), l.db, func(tx *sql.Tx) error { return l.put(t.Context(), l.in(tx), some...) }), "add rows")
	}
	l.rows = append(l.rows, ids...)
	if l.Insert != nil {
		return
	}
	for carried := range slices.Chunk(newUnpublished(n), full) {
		check(t, within(t.Context(), l.db, func(tx *sql.Tx) error { return l.ledger.Record(t.Context(), l.in(tx), carried) }), "add carried rows")
	}
}

// put records IDs. On an own table it inserts the rows first.
func (l *keyedLedger) put(ctx context.Context, tx bridge.Tx, ids ...uuid.UUID) error {
	if l.Insert != nil {
		if err := l.Insert(ctx, tx, ids); err != nil {
			return err
		}
	}
	return l.ledger.Record(ctx, tx, driver.Plain(ids...))
}

// open begins a transaction with a row before all others, and one after them.
func (l *keyedLedger) open(t *testing.T) []*sql.Tx {
	t.Helper()
	tx := begin(t, l.sender.DB())
	check(t, l.put(t.Context(), l.in(tx), uuid.UUID{15: 1}, newID()), "record")
	if l.Insert == nil {
		carried := newUnpublished(2)
		carried[0].ID = uuid.UUID{15: 2}
		check(t, l.ledger.Record(t.Context(), l.in(tx), carried), "record carried messages")
	}
	return []*sql.Tx{tx}
}

func (l *keyedLedger) steps(t *testing.T) []step {
	t.Helper()
	one, some, missing := newIDs(1), newIDs(3), newIDs(2)
	known := l.rows[:min(3, len(l.rows))]
	forget := func(ids []uuid.UUID) func(context.Context) error {
		return func(ctx context.Context) error { _, err := l.ledger.Forget(ctx, ids); return err }
	}
	record := func(ids []uuid.UUID) func(context.Context) error {
		return func(ctx context.Context) error {
			return within(ctx, l.db, func(tx *sql.Tx) error { return l.put(ctx, l.in(tx), ids...) })
		}
	}
	settle := func(id uuid.UUID, want driver.Outcome) func(context.Context) error {
		return func(ctx context.Context) error {
			outcome, _, err := l.ledger.Settle(ctx, id, wait)
			return must("the outcome", outcome, want, err)
		}
	}
	steps := []step{
		{what: "forget missing rows", do: forget(missing)},
		{what: "look up", do: func(ctx context.Context) error {
			found, _, err := l.ledger.Committed(ctx, slices.Concat(known, missing))
			return must("the number of IDs found", len(found), len(known), err)
		}},
		{what: "settle a rolled-back ID", do: settle(missing[0], driver.RolledBack)},
		{what: "record one", do: record(one)},
		{what: "record some", do: record(some)},
		{what: "settle a committed ID", do: settle(one[0], driver.Committed)},
		{what: "forget", do: forget(slices.Concat(one, some, missing))},
	}
	if l.Insert != nil {
		return steps
	}
	return slices.Concat(steps, l.carriedSteps(), l.sideSteps())
}

// carriedSteps returns the steps of rows with messages. They leave as many rows as before.
func (l *keyedLedger) carriedSteps() []step {
	one, some := newUnpublished(1), newUnpublished(4)
	record := func(entries []driver.Entry) func(context.Context) error {
		return func(ctx context.Context) error {
			return within(ctx, l.db, func(tx *sql.Tx) error { return l.ledger.Record(ctx, l.in(tx), entries) })
		}
	}
	var due []driver.DueRow
	list := func(ctx context.Context, after driver.DueRow, limit int) ([]driver.DueRow, error) {
		rows, _, err := l.ledger.Due(ctx, after, limit)
		return rows, must("the number of due rows", len(rows), limit, err)
	}
	return []step{
		{what: "carry one", do: record(one)},
		{what: "cancel it twice", do: func(ctx context.Context) error {
			for _, want := range []bool{true, false} {
				if err := within(ctx, l.db, func(tx *sql.Tx) error {
					done, err := l.ledger.Cancel(ctx, l.in(tx), one[0].ID)
					if err == nil && done != want {
						err = fmt.Errorf("cancel returns %t, must return %t", done, want)
					}
					return err
				}); err != nil {
					return err
				}
			}
			return nil
		}},
		{what: "carry it again", do: record(one)},
		{what: "carry some", do: record(some)},
		{what: "list due rows", do: func(ctx context.Context) (err error) {
			due, err = list(ctx, driver.DueRow{}, 5)
			return err
		}},
		{what: "list due rows from a time on", do: func(ctx context.Context) error {
			_, err := list(ctx, driver.DueRow{StageAt: due[0].StageAt}, 5)
			return err
		}},
		{what: "list due rows after a row", do: func(ctx context.Context) error {
			_, err := list(ctx, due[1], 3) // the next ones
			return err
		}},
		{what: "claim", do: func(ctx context.Context) error {
			messages, err := l.ledger.Claim(ctx, due)
			return must("the number of messages claimed", len(messages), len(due), err)
		}},
		{what: "touch", do: func(ctx context.Context) error { return l.ledger.Touch(ctx, idsOfDue(due)) }},
		{what: "forget claimed rows", do: func(ctx context.Context) error {
			_, err := l.ledger.Forget(ctx, idsOfDue(due))
			return err
		}},
	}
}

// sideSteps returns the steps of orphans.
func (l *keyedLedger) sideSteps() []step {
	orphans := newIDs(2)
	makeOrphans := func(ctx context.Context) error {
		return within(ctx, l.db, func(tx *sql.Tx) error {
			if err := l.put(ctx, l.in(tx), orphans...); err != nil {
				return err
			}
			for _, id := range orphans {
				if _, err := tx.ExecContext(ctx, l.Older+" WHERE id = "+l.Literal(id)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return []step{
		// bridge_ledger has a plain and a carried row for each counted row.
		{what: "sweep", whole: 2, do: func(ctx context.Context) error {
			if err := makeOrphans(ctx); err != nil {
				return err
			}
			swept, err := l.ledger.Sweep(ctx, oldAge, full)
			return must("the number of rows swept", len(swept), len(orphans), err)
		}},
	}
}
