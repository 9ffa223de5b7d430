package ledgertest

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

func testMigrators(t *testing.T, h Harness, begun []string) {
	const migrators = 8
	d := &database{Harness: h, connect: h.create(t)}
	for _, statement := range begun {
		_, err := d.connect().ExecContext(t.Context(), statement)
		check(t, err, statement)
	}
	_, err := h.Open(t.Context(), d.connect())
	if !errors.Is(err, bridge.ErrNoSchema) || !strings.Contains(err.Error(), "migrate.Ledger") {
		t.Errorf("open without tables: %v, must be %v and name migrate.Ledger", err, bridge.ErrNoSchema)
	}
	var all sync.WaitGroup
	identities := make([]uuid.UUID, migrators)
	for i := range migrators {
		db := d.connect()
		check(t, db.PingContext(t.Context()), "connect")
		all.Go(func() {
			if err := h.Migrate(t.Context(), db); err != nil {
				t.Errorf("migrate: %v", err)
				return
			}
			ledger, err := h.Open(t.Context(), db)
			if err != nil {
				t.Errorf("open: %v", err)
				return
			}
			identities[i] = ledger.Identity()
		})
	}
	all.Wait()
	for _, identity := range identities {
		if identity != identities[0] || identity == uuid.Nil {
			t.Fatalf("two identities, or none: %s and %s", identities[0], identity)
		}
	}
}

// raise notes the next version for the tables of a part.
func (h Harness) raise(t *testing.T, db *sql.DB, part string) {
	t.Helper()
	table := h.named("bridge_" + part + "_version")
	_, err := db.ExecContext(t.Context(), fmt.Sprintf(`INSERT INTO %[1]s (version_id, is_applied) `+
		`SELECT version_id + 1, is_applied FROM %[1]s WHERE version_id = (SELECT MAX(version_id) FROM %[1]s)`, table))
	check(t, err, "make it a later version")
}

// testLaterSchema begins with the next release's version, while programs of this one run and start.
func testLaterSchema(t *testing.T, h Harness) {
	d := h.newDatabase(t)
	db := d.sender.DB()
	h.raise(t, db, "ledger")
	check(t, d.ledger.Check(t.Context()), "check")
	identity := d.ledger.Identity()
	d.ledger = d.open(t)
	if after := d.ledger.Identity(); after != identity {
		t.Errorf("the identity was %s, is %s", identity, after)
	}
	id := newID()
	d.commit(t, id)
	d.expectCommitted(t, []uuid.UUID{id}, id)
	check(t, h.Migrate(t.Context(), db), "migrate, with nothing to do")
	check(t, d.ledger.Check(t.Context()), "check")

	h.raise(t, db, "ledger")
	if _, err := h.Open(t.Context(), db); !errors.Is(err, bridge.ErrNoSchema) {
		t.Errorf("open: %v, must be %v", err, bridge.ErrNoSchema)
	}
	if err := d.ledger.Check(t.Context()); !errors.Is(err, bridge.ErrNoSchema) {
		t.Errorf("check: %v, must be %v", err, bridge.ErrNoSchema)
	}
}

func testOtherDatabase(t *testing.T, h Harness) {
	first, second := h.newDatabase(t), h.newDatabase(t)
	if first.ledger.Identity() == second.ledger.Identity() {
		t.Fatal("two databases have the same identity")
	}
	tx := begin(t, second.sender.DB())
	id := newID()
	if err := first.sender.Record(t.Context(), h.in(tx), driver.Plain(id)); !errors.Is(err, bridge.ErrOtherLedger) {
		t.Fatalf("record: %v, must be %v", err, bridge.ErrOtherLedger)
	}
	check(t, tx.Rollback(), "roll back")
	if h.Insert == nil {
		for _, carried := range [][]driver.Entry{newCarried(1), newUnpublished(1), newCarried(2)} {
			tx := begin(t, second.sender.DB())
			if err := first.sender.Record(t.Context(), h.in(tx), carried); !errors.Is(err, bridge.ErrOtherLedger) {
				t.Errorf("record %d carried messages: %v, must be %v", len(carried), err, bridge.ErrOtherLedger)
			}
			check(t, tx.Rollback(), "roll back")
		}
	}
	second.expectCommitted(t, []uuid.UUID{id})
}

// testOtherIdentity: after the statement the database has another ledger than the opened one, as if
// the pool had come to a copy of the database with an identity of its own.
func testOtherIdentity(t *testing.T, h Harness, statement string) {
	d := h.newDatabase(t)
	committed, unknown := newID(), newID()
	d.commit(t, committed)
	if h.Insert == nil {
		d.age(t)
		d.unpublished(t, 1)
	}
	_, err := d.sender.DB().ExecContext(t.Context(), statement)
	check(t, err, statement)

	ctx := t.Context()
	refused := func(doing string, nothing bool, err error) {
		t.Helper()
		if !nothing || !errors.Is(err, bridge.ErrOtherLedger) {
			t.Errorf("%s: returns nothing: %t; %v, must be %v", doing, nothing, err, bridge.ErrOtherLedger)
		}
	}
	tx := begin(t, d.sender.DB())
	refused("record", true, d.sender.Record(ctx, h.in(tx), driver.Plain(newID())))
	check(t, tx.Rollback(), "roll back")
	found, _, err := d.ledger.Committed(ctx, []uuid.UUID{committed})
	refused("look up", len(found) == 0, err)
	for _, id := range []uuid.UUID{committed, unknown} {
		outcome, _, err := d.ledger.Settle(ctx, id, wait)
		refused("settle", outcome == driver.StillOpen, err)
	}
	if d.ledger.Check(ctx) == nil {
		t.Error("check finds nothing wrong")
	}
	if h.Insert != nil {
		return
	}
	due, _, err := d.ledger.Due(ctx, driver.DueRow{}, 10)
	refused("list due rows", len(due) == 0, err)
	orphans, err := d.ledger.Orphans(ctx, oldAge, 10)
	refused("list orphans", len(orphans) == 0, err)
	swept, err := d.ledger.Sweep(ctx, oldAge, 10)
	refused("sweep", len(swept) == 0, err)
	before, err := d.ledger.SweptBefore(ctx)
	refused("read the watermark", before.IsZero(), err)
}

// testEarlierSchema begins with the first release's version.
func testEarlierSchema(t *testing.T, h Harness) {
	d := h.newDatabase(t)
	id := newID()
	d.commit(t, id)
	db := d.sender.DB()
	exec := func(statement string) {
		t.Helper()
		_, err := db.ExecContext(t.Context(), statement)
		check(t, err, statement)
	}
	exec(h.named(`DELETE FROM bridge_ledger_version WHERE version_id > 1`))
	if _, err := h.Open(t.Context(), db); !errors.Is(err, bridge.ErrNoSchema) || !strings.Contains(err.Error(), "migrate.Ledger") {
		t.Errorf("open: %v, must be %v and name migrate.Ledger", err, bridge.ErrNoSchema)
	}
	for _, statement := range h.Uncarry {
		exec(statement)
	}
	exec(h.named(`DROP TABLE bridge_watermark`))
	identity := d.ledger.Identity()
	d.ledger = d.open(t)
	if after := d.ledger.Identity(); after != identity {
		t.Errorf("the identity was %s, is %s", identity, after)
	}
	d.expectCommitted(t, []uuid.UUID{id}, id)
	check(t, d.ledger.Check(t.Context()), "check")
}
