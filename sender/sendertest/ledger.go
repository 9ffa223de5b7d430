package sendertest

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// recordStatement begins the statement that records, and cancelStatement is the one that cancels.
// The memory recognizes them by this text.
const (
	recordStatement = "INSERT INTO bridge_ledger (id) VALUES "
	cancelStatement = "DELETE FROM bridge_ledger WHERE id = ?"
)

// memoryLedger records by one statement. The rows belong to the transaction in which it runs.
type memoryLedger struct {
	memory   *memory
	rows     *rows
	identity uuid.UUID
}

func (*memoryLedger) Enter(context.Context, bridge.Tx) error { return nil }
func (*memoryLedger) Leave(context.Context, bridge.Tx) error { return nil }
func (l *memoryLedger) Identity() uuid.UUID                  { return l.identity }
func (*memoryLedger) Features() driver.Features              { return driver.Features{Carries: true} }

// Cancel deletes the row of a carried message that the sender has not published. No verifier runs
// that could have staged it.
func (l *memoryLedger) Cancel(ctx context.Context, tx bridge.Tx, id uuid.UUID) (bool, error) {
	if !l.rows.unpublished(id) {
		return false, nil
	}
	changed, err := tx.Exec(ctx, cancelStatement, id.String())
	if err != nil {
		return false, fmt.Errorf("cancel %s: %w", id, err)
	}
	return changed > 0, nil
}

func (l *memoryLedger) Record(ctx context.Context, tx bridge.Tx, entries []driver.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	ids := make([]any, len(entries))
	for i, e := range entries {
		ids[i] = e.ID.String()
	}
	values := strings.TrimSuffix(strings.Repeat("(?), ", len(entries)), ", ")
	if _, err := tx.Exec(ctx, recordStatement+values, ids...); err != nil {
		return fmt.Errorf("record %d IDs: %w", len(entries), err)
	}
	return l.rows.add(l.identity, entries, !l.memory.has(entries[0].ID))
}

// realLedger is a ledger of a database, and notes the records.
type realLedger struct {
	driver.Recorder
	rows *rows
}

func (l *realLedger) Record(ctx context.Context, tx bridge.Tx, entries []driver.Entry) error {
	if err := l.Recorder.Record(ctx, tx, entries); err != nil {
		return err
	}
	return l.rows.add(l.Identity(), entries, false)
}
