package driver

import (
	"context"
	"database/sql"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
)

// A Recorder is what a sender needs of a ledger.
type Recorder interface {
	// Identity is the UUID that was made when the ledger's tables were created.
	// A message is judged only by the ledger whose identity it carries.
	Identity() uuid.UUID

	// Record inserts the IDs, all or none, in the caller's transaction; a
	// rollback, also one to an earlier savepoint, takes them back, and so does a crash
	// before the commit. It waits for another open transaction that has recorded one of
	// them. It returns ErrDuplicateID if one of them is recorded already, ErrOtherLedger
	// if tx belongs to a database whose ledger has another identity, and ErrNoSchema if
	// it has none. After an error the caller must roll back. (On an OwnTable it inserts
	// nothing, and returns ErrNoRow for an ID without a row.)
	Record(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) error
}

// A Ledger is what a verifier needs. All methods may be called concurrently; an
// error of any of them means that nothing is known and nothing was changed for
// certain.
type Ledger interface {
	Recorder

	// DB is the pool that the ledger works on.
	DB() *sql.DB

	// Committed returns those of ids whose transaction has certainly committed.
	// It never waits for a transaction that has recorded IDs; work on the whole table,
	// such as ALTER TABLE, may keep it waiting until ctx ends. Of the other IDs it says
	// nothing: they may be uncommitted, rolled back, or committed a moment ago.
	Committed(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error)

	// Settle waits until the transaction that recorded id has ended and returns
	// how. The server bounds the wait to wait, rounded up to its unit (a millisecond; a
	// second on MySQL); after it the outcome is StillOpen. An id without a row and
	// without an open transaction is RolledBack, so Settle must be asked only about an
	// id that was recorded before. With an error the outcome is StillOpen: nothing is
	// known.
	Settle(ctx context.Context, id uuid.UUID, wait time.Duration) (Outcome, error)

	// Forget deletes the rows of ids; missing ones are no error.
	Forget(ctx context.Context, ids []uuid.UUID) error

	// Check tells whether the ledger can be used here and now: reachable, the
	// identity as before (else ErrOtherLedger), the schema's version known
	// (ErrNoSchema), a primary that takes writes (ErrNotPrimary).
	Check(ctx context.Context) error
}

// An Outcome is what became of the transaction that recorded an ID.
type Outcome int

const (
	// StillOpen: nothing is known yet. It is the zero value on purpose.
	StillOpen Outcome = iota
	// Committed: the row is there.
	Committed
	// RolledBack: the row is not there, and no open transaction can still bring it.
	RolledBack
)

// String returns the outcome in the words of logs and metrics.
func (o Outcome) String() string {
	switch o {
	case Committed:
		return "committed"
	case RolledBack:
		return "rolled back"
	default:
		return "still open"
	}
}
