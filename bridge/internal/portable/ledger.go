package portable

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A Ledger is the portable part of a ledger. A database's package embeds it, and gives it its
// Verbs.
type Ledger struct {
	NoFence
	db       *sqlx.DB
	identity uuid.UUID
	verbs    Verbs
}

// Verbs are the parts of a ledger that each database implements. They return the database's errors
// unchanged.
type Verbs struct {
	// Classify adds the bridge's error, with the fix, to the database's. doing is one of the
	// constants below.
	Classify func(err error, doing string) error
	// Most is how many IDs one statement takes, at most Chunk.
	Most int
	// Tick is the resolution of recorded_at.
	Tick time.Duration

	// Identity reads the identity, and checks the tables.
	Identity func(ctx context.Context) (uuid.UUID, error)
	// Check returns nil if a verifier may judge by this server. It may be nil.
	Check func(ctx context.Context) error

	// Record inserts ids in tx if the database of tx has the ledger's identity. It returns the
	// number of inserted rows.
	Record func(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) (changed int64, err error)
	// Carry inserts rows with about a mebibyte of messages in tx, if the database of tx has the
	// ledger's identity. All rows get the same times. It returns the number of inserted rows.
	Carry func(ctx context.Context, tx bridge.Tx, stage Stage, messages []driver.Carried) (changed int64, err error)

	// Cancel deletes the row of id in tx if its stage time is not after its recorded_at, and
	// returns the number of deleted rows.
	Cancel func(ctx context.Context, tx bridge.Tx, id uuid.UUID) (changed int64, err error)

	// Due, Claim and Touch do the same as in driver.Ledger, for at most Most rows. Due returns at
	// least one row if the identity is right, with nulls if no row is due.
	Due   func(ctx context.Context, after driver.DueRow, limit int) ([]DueRow, error)
	Claim func(ctx context.Context, rows []driver.DueRow) ([]driver.Carried, error)
	Touch func(ctx context.Context, ids []uuid.UUID) error

	// Instance, Committed and Settle do the same as in driver.Ledger.
	Instance  func(ctx context.Context, tx bridge.Tx) (driver.Instance, error)
	Committed func(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, driver.Instance, error)
	Settle    func(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, driver.Instance, error)

	// Recent does the same as in driver.Ledger.
	Recent func(ctx context.Context, ids []uuid.UUID, age time.Duration) ([]uuid.UUID, driver.Instance, error)

	// Forget deletes the rows of ids, and commits that at once. It returns the IDs of rows locked
	// by another transaction.
	Forget func(ctx context.Context, ids []uuid.UUID) (left []uuid.UUID, err error)

	// Orphans returns at least one row if the identity is right, with nulls if there are no
	// orphans.
	Orphans func(ctx context.Context, age time.Duration, limit int) ([]OrphanRow, error)
	// Raise raises the watermark to before, unless it is higher.
	Raise func(ctx context.Context, before time.Time) error
	// Remove deletes the rows of ids that were recorded before that time and carry no message,
	// skips rows locked by another transaction, and returns the IDs of the deleted rows.
	Remove func(ctx context.Context, ids []uuid.UUID, before time.Time) ([]uuid.UUID, error)
	// SweptBefore reads the watermark of the opened ledger, on a primary.
	SweptBefore func(ctx context.Context) (time.Time, error)
}

// A Stage selects the times of rows: recorded_at is the database's present time, or NotBefore if
// that is later. The stage time is the same, or driver.PublishedGrace later if the messages are
// published.
type Stage struct {
	Published bool
	NotBefore time.Time // whole milliseconds, UTC, 1970 or later
}

// The actions that errors name.
const (
	Opening          = "open ledger"
	Checking         = "check ledger"
	Recording        = "record"
	Carrying         = "record carried messages"
	Cancelling       = "cancel"
	ListingDue       = "list due rows"
	Claiming         = "claim due rows"
	Touching         = "touch carried rows"
	Naming           = "name the server"
	LookingUp        = "look up"
	Settling         = "settle"
	Forgetting       = "forget"
	ListingOrphans   = "list orphans"
	Sweeping         = "sweep"
	ReadingWatermark = "read the watermark"
)

// An OrphanRow is a row in a list of orphans.
type OrphanRow struct {
	ID         uuid.NullUUID
	RecordedAt sql.NullTime `db:"recorded_at"`
}

// A DueRow is a row in a list of due rows. Now is the database's time.
type DueRow struct {
	Now        time.Time
	ID         uuid.NullUUID
	RecordedAt sql.NullTime  `db:"recorded_at"`
	StageAt    sql.NullTime  `db:"stage_at"`
	Bytes      sql.NullInt64 `db:"bytes"`
}

// Open returns the ledger in db.
func Open(ctx context.Context, db *sqlx.DB, verbs Verbs) (Ledger, error) {
	l := Ledger{db: db, verbs: verbs}
	var err error
	l.identity, err = verbs.Identity(ctx)
	return l, l.wrap(Opening, err)
}

// With returns the same ledger with other verbs.
func With(l *Ledger, verbs Verbs) Ledger { return Ledger{db: l.db, identity: l.identity, verbs: verbs} }

// Identity returns the UUID that was made with the ledger's tables.
func (l *Ledger) Identity() uuid.UUID { return l.identity }

// DB returns the pool that was passed to Open.
func (l *Ledger) DB() *sql.DB { return l.db.DB }

// Features returns all features.
func (*Ledger) Features() driver.Features {
	return driver.Features{Carries: true, Sweeps: true}
}

// ProofLedger returns nil: the ledger itself is proven.
func (*Ledger) ProofLedger() driver.Ledger { return nil }

// FallBack returns false: there is no second way to wait.
func (*Ledger) FallBack(error) bool { return false }

// FellBack returns nil.
func (*Ledger) FellBack() error { return nil }

// Check checks the tables and the server.
func (l *Ledger) Check(ctx context.Context) error {
	identity, err := l.verbs.Identity(ctx)
	if err == nil && identity != l.identity {
		err = fmt.Errorf("%w: found %s, opened %s", bridge.ErrOtherLedger, identity, l.identity)
	}
	if err == nil && l.verbs.Check != nil {
		err = l.verbs.Check(ctx)
	}
	return l.wrap(Checking, err)
}

// Record inserts the rows without messages by one call of Verbs.Record, and the rows with messages
// by Verbs.Carry, about a mebibyte at once. If it fails, tx contains some of the rows or none.
func (l *Ledger) Record(ctx context.Context, tx bridge.Tx, entries []driver.Entry) error {
	plain, carried := splitCarried(entries)
	if len(plain) > 0 {
		changed, err := l.verbs.Record(ctx, tx, plain)
		if err = l.expectChanged(changed, len(plain), err); err != nil {
			return fmt.Errorf("record %d IDs: %w", len(entries), l.verbs.Classify(err, Recording))
		}
	}
	for _, c := range carried {
		if err := l.carry(ctx, tx, c.stage, c.messages); err != nil {
			return err
		}
	}
	return nil
}

// A carryBatch holds messages whose rows get the same times.
type carryBatch struct {
	stage    Stage
	messages []driver.Carried
}

// splitCarried separates plain entries from carried ones, and groups the carried ones by their
// times.
func splitCarried(entries []driver.Entry) (plain []uuid.UUID, carried []carryBatch) {
	places := make(map[Stage]int)
	for _, e := range entries {
		if e.Message == nil {
			plain = append(plain, e.ID)
			continue
		}
		stage := Stage{!e.Unpublished && e.NotBefore.IsZero(), roundedUp(e.NotBefore)}
		place, ok := places[stage]
		if !ok {
			place = len(carried)
			places[stage] = place
			carried = append(carried, carryBatch{stage: stage})
		}
		carried[place].messages = append(carried[place].messages, driver.Carried{ID: e.ID, Message: e.Message})
	}
	return plain, carried
}

// roundedUp returns a time in whole milliseconds, not before 1970.
func roundedUp(t time.Time) time.Time {
	up := t.UTC().Truncate(time.Millisecond)
	if up.Before(t) {
		up = up.Add(time.Millisecond)
	}
	if epoch := time.Unix(0, 0).UTC(); up.Before(epoch) {
		return epoch
	}
	return up
}

func (l *Ledger) carry(ctx context.Context, tx bridge.Tx, stage Stage, messages []driver.Carried) error {
	for chunk := range byBytes(messages, min(Chunk, l.verbs.Most)) {
		changed, err := l.verbs.Carry(ctx, tx, stage, chunk)
		if err = l.expectChanged(changed, len(chunk), err); err != nil {
			return fmt.Errorf("record %d carried messages: %w", len(messages), l.verbs.Classify(err, Carrying))
		}
	}
	return nil
}

// Cancel compares the row's two times. After a Claim or a Touch the stage time is later.
func (l *Ledger) Cancel(ctx context.Context, tx bridge.Tx, id uuid.UUID) (bool, error) {
	changed, err := l.verbs.Cancel(ctx, tx, id)
	if err != nil {
		return false, fmt.Errorf("cancel %s: %w", id, l.verbs.Classify(err, Cancelling))
	}
	return changed > 0, nil
}

// carryBytes bounds the bytes of messages in one statement, unless one message is larger.
const carryBytes = 1 << 20

// byBytes splits messages into chunks of at most carryBytes, or one larger message, and of at most
// most messages.
func byBytes(messages []driver.Carried, most int) iter.Seq[[]driver.Carried] {
	return func(yield func([]driver.Carried) bool) {
		for len(messages) > 0 {
			n, bytes := 1, len(messages[0].Message)
			for n < min(len(messages), most) && bytes+len(messages[n].Message) <= carryBytes {
				bytes += len(messages[n].Message)
				n++
			}
			if !yield(messages[:n]) {
				return
			}
			messages = messages[n:]
		}
	}
}

// Due reads by the index on the stage time.
func (l *Ledger) Due(ctx context.Context, after driver.DueRow, limit int) (due []driver.DueRow, now time.Time, err error) {
	rows, err := l.verbs.Due(ctx, after, min(limit, l.verbs.Most))
	if err == nil && len(rows) == 0 {
		err = OtherLedger(l.identity)
	}
	if err != nil {
		return nil, time.Time{}, l.wrap(ListingDue, err)
	}
	for _, row := range rows {
		if row.ID.Valid {
			due = append(due, driver.DueRow{ID: row.ID.UUID, RecordedAt: row.RecordedAt.Time.UTC(), StageAt: row.StageAt.Time.UTC(), Bytes: row.Bytes.Int64})
		}
	}
	return due, rows[0].Now.UTC(), nil
}

// Claim is one statement, or several on SQL Server, MySQL and MariaDB.
func (l *Ledger) Claim(ctx context.Context, rows []driver.DueRow) ([]driver.Carried, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	if len(rows) > l.verbs.Most {
		return nil, fmt.Errorf("%s: %d rows, at most %d", Claiming, len(rows), l.verbs.Most)
	}
	messages, err := l.verbs.Claim(ctx, rows)
	return messages, l.wrap(Claiming, err)
}

// Touch changes the rows of one statement at once.
func (l *Ledger) Touch(ctx context.Context, ids []uuid.UUID) error {
	for chunk := range slices.Chunk(ids, l.verbs.Most) {
		if err := l.verbs.Touch(ctx, chunk); err != nil {
			return l.wrap(Touching, err)
		}
	}
	return nil
}

// expectChanged returns err, or else OtherLedger if a statement has not changed n rows: then it has not
// found the identity.
func (l *Ledger) expectChanged(changed int64, n int, err error) error {
	if err != nil {
		return err
	}
	return ExpectChanged(changed, n, l.identity)
}

// Committed never waits for a sender.
func (l *Ledger) Committed(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, driver.Instance, error) {
	if len(ids) == 0 {
		return nil, "", nil
	}
	found, from, err := l.verbs.Committed(ctx, ids)
	if err != nil {
		return nil, "", fmt.Errorf("look up %d IDs: %w", len(ids), l.verbs.Classify(err, LookingUp))
	}
	return found, from, nil
}

// Instance reads the instance in tx.
func (l *Ledger) Instance(ctx context.Context, tx bridge.Tx) (driver.Instance, error) {
	from, err := l.verbs.Instance(ctx, tx)
	return from, l.wrap(Naming, err)
}

// Settle waits as described in the database's package.
func (l *Ledger) Settle(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, driver.Instance, error) {
	outcome, from, err := l.verbs.Settle(ctx, id, wait)
	if err != nil {
		return driver.StillOpen, "", fmt.Errorf("settle %s: %w", id, l.verbs.Classify(err, Settling))
	}
	return outcome, from, nil
}

// Recent never waits for a sender.
func (l *Ledger) Recent(ctx context.Context, ids []uuid.UUID, age time.Duration) (found []uuid.UUID, from driver.Instance, err error) {
	for chunk := range slices.Chunk(ids, l.verbs.Most) {
		some, answers, err := l.verbs.Recent(ctx, chunk, age)
		if err == nil && from != "" && answers != "" && from != answers {
			err = fmt.Errorf("%w: %s, then %s", bridge.ErrOtherInstance, from, answers)
		}
		if err != nil {
			return nil, "", fmt.Errorf("look up %d recent IDs: %w", len(ids), l.verbs.Classify(err, LookingUp))
		}
		found = append(found, some...)
		if answers != "" { // a locked table names no instance, and has no rows
			from = answers
		}
	}
	return found, from, nil
}

// Forget deletes the rows of ids. Each statement takes at most Most, and is committed at once.
// After an error or a crash some rows may be gone and some still there.
func (l *Ledger) Forget(ctx context.Context, ids []uuid.UUID) (left []uuid.UUID, err error) {
	for chunk := range slices.Chunk(ids, l.verbs.Most) {
		locked, err := l.verbs.Forget(ctx, chunk)
		if err != nil {
			return nil, fmt.Errorf("forget %d IDs: %w", len(ids), l.verbs.Classify(err, Forgetting))
		}
		left = append(left, locked...)
	}
	return left, nil
}

// Orphans reads the whole ledger.
func (l *Ledger) Orphans(ctx context.Context, age time.Duration, limit int) ([]driver.Orphan, error) {
	found, err := l.orphans(ctx, age, limit)
	return found, l.wrap(ListingOrphans, err)
}

// Sweep deletes by key, one statement's rows per transaction.
func (l *Ledger) Sweep(ctx context.Context, age time.Duration, limit int) ([]driver.Orphan, error) {
	swept, err := l.sweep(ctx, age, limit)
	return swept, l.wrap(Sweeping, err)
}

// SweptBefore reads the watermark.
func (l *Ledger) SweptBefore(ctx context.Context) (time.Time, error) {
	before, err := l.verbs.SweptBefore(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		err = OtherLedger(l.identity)
	}
	return before, l.wrap(ReadingWatermark, err)
}

// wrap adds to err, unless it is nil, the action that failed.
func (l *Ledger) wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, l.verbs.Classify(err, doing))
}

// Unsupported returns the error of a verb that the features deny.
func Unsupported(doing, what string) error {
	return fmt.Errorf("%s: %s cannot: %w", doing, what, errors.ErrUnsupported)
}
