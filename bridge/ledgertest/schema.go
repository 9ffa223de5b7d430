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

func testIdentity(t *testing.T, h Harness) {
	first, second := h.newDatabase(t), h.newDatabase(t)
	identity := first.ledger.Identity()
	if identity == uuid.Nil {
		t.Fatal("the identity is zero")
	}
	if again := first.open(t).Identity(); again != identity {
		t.Fatalf("the identity was %s, is %s after another migration", identity, again)
	}
	if second.ledger.Identity() == identity {
		t.Fatal("two databases have the same identity")
	}
	check(t, first.ledger.Check(t.Context()), "check")
}

func testMigrators(t *testing.T, h Harness) {
	const migrators = 8
	d := &database{Harness: h, connect: h.create(t)}
	var all sync.WaitGroup
	identities := make([]uuid.UUID, migrators)
	for i := range migrators {
		db := d.connect()
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
		if identity != identities[0] {
			t.Fatalf("two identities: %s and %s", identities[0], identity)
		}
	}
}

func testNoSchema(t *testing.T, h Harness) {
	db := h.create(t)()
	_, err := h.Open(t.Context(), db)
	if !errors.Is(err, bridge.ErrNoSchema) || !strings.Contains(err.Error(), "migrate.Ledger") {
		t.Errorf("open without tables: %v, must be %v and name migrate.Ledger", err, bridge.ErrNoSchema)
	}
}

// raise makes the tables of a part those of a later version.
func raise(t *testing.T, db *sql.DB, part string, versions int) {
	t.Helper()
	table := "bridge_" + part + "_version"
	_, err := db.ExecContext(t.Context(), fmt.Sprintf(`INSERT INTO %[1]s (version_id, is_applied) `+
		`SELECT version_id + %[2]d, is_applied FROM %[1]s WHERE version_id = (SELECT MAX(version_id) FROM %[1]s)`, table, versions))
	check(t, err, "make it a later version")
}

// As the next release leaves it, while programs of this one run and start.
func testNextSchema(t *testing.T, h Harness) {
	d := h.newDatabase(t)
	raise(t, d.sender.DB(), "ledger", 1)
	check(t, d.ledger.Check(t.Context()), "check")
	identity := d.ledger.Identity()
	d.ledger = d.open(t)
	if after := d.ledger.Identity(); after != identity {
		t.Errorf("the identity was %s, is %s", identity, after)
	}
	id := newID()
	d.commit(t, id)
	d.expectCommitted(t, []uuid.UUID{id}, id)
	check(t, h.Migrate(t.Context(), d.sender.DB()), "migrate, with nothing to do")
	check(t, d.ledger.Check(t.Context()), "check")
}

func testLaterSchema(t *testing.T, h Harness) {
	d := h.newDatabase(t)
	db := d.sender.DB()
	raise(t, db, "ledger", 2)
	if _, err := h.Open(t.Context(), db); !errors.Is(err, bridge.ErrNoSchema) {
		t.Errorf("open: %v, must be %v", err, bridge.ErrNoSchema)
	}
	if err := d.ledger.Check(t.Context()); !errors.Is(err, bridge.ErrNoSchema) {
		t.Errorf("check: %v, must be %v", err, bridge.ErrNoSchema)
	}
}

func testOtherDatabase(t *testing.T, h Harness) {
	first, second := h.newDatabase(t), h.newDatabase(t)
	tx := begin(t, second.sender.DB())
	id := newID()
	if err := first.sender.Record(t.Context(), h.in(tx), []uuid.UUID{id}); !errors.Is(err, bridge.ErrOtherLedger) {
		t.Fatalf("record: %v, must be %v", err, bridge.ErrOtherLedger)
	}
	check(t, tx.Rollback(), "roll back")
	second.expectCommitted(t, []uuid.UUID{id})
}

func testLostIdentity(t *testing.T, h Harness) {
	d := h.newDatabase(t)
	committed, unknown := newID(), newID()
	d.commit(t, committed)
	_, err := d.sender.DB().ExecContext(t.Context(), `DELETE FROM bridge_identity`)
	check(t, err, "take the identity away")

	ctx := t.Context()
	tx := begin(t, d.sender.DB())
	if err := d.sender.Record(ctx, h.in(tx), []uuid.UUID{newID()}); !errors.Is(err, bridge.ErrOtherLedger) {
		t.Errorf("record: %v, must be %v", err, bridge.ErrOtherLedger)
	}
	check(t, tx.Rollback(), "roll back")
	if found, err := d.ledger.Committed(ctx, []uuid.UUID{committed}); len(found) > 0 || !errors.Is(err, bridge.ErrOtherLedger) {
		t.Errorf("look up: %v, %v, must be %v", found, err, bridge.ErrOtherLedger)
	}
	for _, id := range []uuid.UUID{committed, unknown} {
		if outcome, err := d.ledger.Settle(ctx, id, wait); outcome != driver.StillOpen || !errors.Is(err, bridge.ErrOtherLedger) {
			t.Errorf("settle: %q, %v, must be %q, %v", outcome, err, driver.StillOpen, bridge.ErrOtherLedger)
		}
	}
	if err := d.ledger.Check(ctx); err == nil {
		t.Error("check finds nothing wrong")
	}
}

// As a release leaves it that knows no parked messages.
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
	exec(`DELETE FROM bridge_ledger_version WHERE version_id > 1`)
	if _, err := h.Open(t.Context(), db); !errors.Is(err, bridge.ErrNoSchema) || !strings.Contains(err.Error(), "migrate.Ledger") {
		t.Errorf("open: %v, must be %v and name migrate.Ledger", err, bridge.ErrNoSchema)
	}
	exec(`DROP TABLE bridge_parked`)
	exec(`DROP TABLE bridge_watermark`)
	identity := d.ledger.Identity()
	d.ledger = d.open(t)
	if after := d.ledger.Identity(); after != identity {
		t.Errorf("the identity was %s, is %s", identity, after)
	}
	d.expectCommitted(t, []uuid.UUID{id}, id)
	check(t, d.ledger.Check(t.Context()), "check")
}
