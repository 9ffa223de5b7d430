package ledgertest

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

func testOwnRows(t *testing.T, d *database) {
	if d.Insert == nil {
		t.Skip("Record inserts the rows")
	}
	with, without := newID(), newID()
	tx := begin(t, d.sender.DB())
	check(t, d.Insert(t.Context(), d.in(tx), []uuid.UUID{with}), "insert")
	if err := d.sender.Record(t.Context(), d.in(tx), driver.Plain(with, without)); !errors.Is(err, bridge.ErrNoRow) {
		t.Errorf("record an ID without a row: %v, must be %v", err, bridge.ErrNoRow)
	}
	check(t, tx.Rollback(), "roll back")

	d.commit(t, with)
	d.forget(t, with)
	d.expectCommitted(t, []uuid.UUID{with, without}, with)
	d.expectSettled(t, with, driver.Committed)
}
