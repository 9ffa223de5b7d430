package tables

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A Ledger is the part of a ledger that is the same in all databases. A database's package
// embeds it, gives it its Verbs, and adds the methods in which the databases differ
// altogether.
type Ledger struct {
	db       *sqlx.DB
	identity uuid.UUID
	verbs    Verbs
}

// Verbs are what a database does in its own words. Their errors are the database's, as
// they came.
type Verbs struct {
	// Classify adds to an error what it means for the bridge. doing is one of the
	// constants below.
	Classify func(err error, doing string) error
	// Most is how many IDs one statement takes, Chunk or fewer.
	Most int
	// Tick is the resolution of recorded_at.
	Tick time.Duration

	// Forget deletes the rows of ids, and commits that at once.
	Forget func(ctx context.Context, ids []uuid.UUID) error

	// Shelf begins a transaction that ends at the latest with its context.
	Shelf func(ctx context.Context) (Shelf, error)
	// CountParked counts up to limit.
	CountParked func(ctx context.Context, limit int) (int, error)

	// Orphans returns one row at least if the identity is right, which has nulls if there
	// are no orphans.
	Orphans func(ctx context.Context, age time.Duration, limit int) ([]OrphanRow, error)
	// Raise raises the watermark to before, unless it is higher.
	Raise func(ctx context.Context, before time.Time) error
	// Remove deletes the rows of ids that were recorded before that time, but those
	// that another transaction has locked, and returns which it has deleted.
	Remove func(ctx context.Context, ids []uuid.UUID, before time.Time) ([]uuid.UUID, error)
	// SweptBefore reads the watermark, of the ledger that was opened and on a primary.
	SweptBefore func(ctx context.Context) (time.Time, error)

	// Watched is what an inspector knows.
	Watched Watched
}

// What is being done, as errors say it.
const (
	Forgetting       = "forget"
	Unparking        = "unpark"
	CountingParked   = "count parked messages"
	ListingOrphans   = "list orphans"
	Sweeping         = "sweep"
	ReadingWatermark = "read the watermark"
)

// An OrphanRow is a row of a list of orphans.
type OrphanRow struct {
	ID         uuid.NullUUID
	RecordedAt sql.NullTime `db:"recorded_at"`
}

// NewLedger returns the ledger of that identity in db.
func NewLedger(db *sqlx.DB, identity uuid.UUID, verbs Verbs) Ledger {
	return Ledger{db, identity, verbs}
}

// Identity returns the UUID that was made with the ledger's tables.
func (l *Ledger) Identity() uuid.UUID { return l.identity }

// DB returns the pool that Open was given.
func (l *Ledger) DB() *sql.DB { return l.db.DB }

// Watched is for the inspector of the database.
func (l *Ledger) Watched() Watched { return l.verbs.Watched }

// Features are all.
func (*Ledger) Features() driver.Features {
	return driver.Features{Parks: true, Sweeps: true}
}

// ProofLedger is nil: the ledger itself is proven.
func (*Ledger) ProofLedger() driver.Ledger { return nil }

// FallBack knows no second way to wait.
func (*Ledger) FallBack(error) bool { return false }

// FellBack is nil.
func (*Ledger) FellBack() error { return nil }

// Forget deletes the rows of ids, as many per statement as it takes, each of which is
// committed at once. After an error or a crash some may be gone and some still there.
func (l *Ledger) Forget(ctx context.Context, ids []uuid.UUID) error {
	for chunk := range slices.Chunk(ids, l.verbs.Most) {
		if err := l.verbs.Forget(ctx, chunk); err != nil {
			return fmt.Errorf("forget %d IDs: %w", len(ids), l.verbs.Classify(err, Forgetting))
		}
	}
	return nil
}

// Unpark has what it takes locked while it stages, unless the database's package says
// otherwise.
func (l *Ledger) Unpark(ctx context.Context, after uuid.UUID, limit int, stage func(ctx context.Context, messages []driver.Parked) error) (int, error) {
	removed, err := Unpark(ctx, l.verbs.Shelf, after, min(limit, l.verbs.Most), stage)
	return removed, l.wrap(Unparking, err)
}

// CountParked counts what has been committed.
func (l *Ledger) CountParked(ctx context.Context, limit int) (int, error) {
	n, err := l.verbs.CountParked(ctx, limit)
	return n, l.wrap(CountingParked, err)
}

// Orphans reads the whole ledger.
func (l *Ledger) Orphans(ctx context.Context, age time.Duration, limit int) ([]driver.Orphan, error) {
	found, err := l.orphans(ctx, age, limit)
	return found, l.wrap(ListingOrphans, err)
}

// Sweep deletes by key, as many rows per transaction as one statement takes.
func (l *Ledger) Sweep(ctx context.Context, age time.Duration, limit int) ([]driver.Orphan, error) {
	sweep := Sweep{List: l.orphans, Raise: l.verbs.Raise, Remove: l.verbs.Remove, Tick: l.verbs.Tick, Most: l.verbs.Most}
	swept, err := sweep.Run(ctx, age, limit)
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

func (l *Ledger) orphans(ctx context.Context, age time.Duration, limit int) ([]driver.Orphan, error) {
	if err := CheckAge(age, limit); err != nil {
		return nil, err
	}
	rows, err := l.verbs.Orphans(ctx, age, limit)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, OtherLedger(l.identity)
	}
	var found []driver.Orphan
	for _, row := range rows {
		if row.ID.Valid {
			found = append(found, driver.Orphan{ID: row.ID.UUID, RecordedAt: row.RecordedAt.Time.UTC()})
		}
	}
	return found, nil
}

// wrap says what was being done when err came about, if it did.
func (l *Ledger) wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, l.verbs.Classify(err, doing))
}

// Unsupported is the error of a verb that the features deny.
func Unsupported(doing, what string) error {
	return fmt.Errorf("%s: %s cannot: %w", doing, what, errors.ErrUnsupported)
}
