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
	// Identity is the UUID that was made when the ledger's tables were created; that of a
	// ledger on an own table is derived from it (bridge.OwnTable). A message is judged only by the ledger whose identity it carries.
	Identity() uuid.UUID

	// Features says what this ledger does. It never changes.
	Features() Features

	// Record inserts the IDs, all or none, in the caller's transaction; a
	// rollback, also one to an earlier savepoint, takes them back, and so does a crash
	// before the commit. It waits for another open transaction that has recorded one of
	// them. It returns bridge.ErrDuplicateID if one of them is recorded already,
	// bridge.ErrOtherLedger if tx belongs to a database whose ledger has another identity,
	// and bridge.ErrNoSchema if it has none. After an error the caller must roll back. (On
	// an own table it inserts nothing, and returns bridge.ErrNoRow for an ID without a row.)
	Record(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) error

	// Park stores messages, all or none, in the caller's transaction, in which their
	// IDs must have been recorded before: a parked message without a row in the ledger
	// counts as forwarded. A rollback, also one to an earlier savepoint, takes them
	// back. The errors are Record's; after one the caller must roll back.
	//
	// A message may be staged as well, which happens where a confirm is only late.
	// It is then delivered twice, with the same ID.
	//
	// A parked message lies in the table bridge_parked, beside its row in the ledger.
	// That table is empty where nobody parks, and costs nothing then.
	Park(ctx context.Context, tx bridge.Tx, messages []Parked) error
}

// Features are the differences between ledgers that whoever calls them must know. A verb
// that they deny returns an error that wraps errors.ErrUnsupported. Only a ledger on an own
// table may deny Parks and Sweeps.
type Features struct {
	// Parks: messages can be parked. If not, Park, Unpark and CountParked are denied.
	Parks bool
	// Sweeps: rows whose messages are gone can be found and removed. If not, Orphans,
	// Sweep and SweptBefore are denied, and no row was ever removed by a sweep.
	Sweeps bool
	// KeepsRows: the rows are the application's (bridge.OwnTable). Record inserts none and
	// Forget deletes none, so that a message that comes again is forwarded again.
	KeepsRows bool
}

// A Ledger is what a verifier judges by. All methods may be called concurrently. After an
// error nothing is known: all, some or nothing may have been changed.
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
	// identity as before (else bridge.ErrOtherLedger), the schema's version known
	// (bridge.ErrNoSchema), a primary that takes writes (bridge.ErrNotPrimary).
	Check(ctx context.Context) error

	// Unpark takes parked messages of committed transactions, calls stage, which publishes
	// them to the staging queue, and removes them. It returns how many it has removed.
	//
	// It takes at most limit messages, which must be positive, at most as many as one
	// statement takes (500 on SQL Server, 1000 elsewhere), and at most UnparkBytes
	// together, but always one. It takes them in the order in which the database sorts IDs,
	// beginning behind the ID after; the zero UUID begins at the first. So a message that
	// the broker refuses can be passed by. Two Unparks take different messages, unless the
	// database's package says otherwise.
	//
	// stage is called once at most, and not at all without messages; its context ends
	// after UnparkPatience. If it fails, its error is returned. If it fails, or the
	// process or the connection dies at any moment, what was taken stays parked and
	// will be taken again: the staging queue may then hold a message twice, with the
	// same ID, and no message is lost. Whoever freezes while it stages keeps what it
	// has taken until its connection ends.
	//
	// A message whose row in the ledger is gone was forwarded already, as a staged
	// copy: it is removed without being staged.
	//
	// What has been staged again counts as recorded at the moment of its removal (see
	// 'The sweep' in the package's comment). One whose row somebody else has locked at
	// that moment stays parked.
	Unpark(ctx context.Context, after uuid.UUID, limit int, stage func(ctx context.Context, messages []Parked) error) (int, error)

	// CountParked counts the parked messages of committed transactions, up to limit.
	// It waits for nobody; what an Unpark has taken may be counted or not.
	CountParked(ctx context.Context, limit int) (int, error)

	// Orphans lists at most limit committed rows that were recorded more than age ago
	// and have no parked message, the oldest first. It reads only, the whole ledger
	// once, and waits for no sender; a row that somebody has locked may be missing.
	Orphans(ctx context.Context, age time.Duration, limit int) ([]Orphan, error)

	// Sweep removes what Orphans lists, and returns what it has removed. An age below
	// MinSweepAge is an error. It first raises the watermark above the youngest of
	// them, and commits that; without such rows it changes nothing. Then it removes
	// them, at most a thousand in one transaction, and none that another
	// transaction has locked, which it does not wait for. (On SQLite it waits for other
	// writers. Where a server cannot skip locked rows it fails instead; see the package.)
	// After an error or a crash
	// the watermark may be raised and some of the rows removed; with an error it
	// returns those. Why it loses no message: 'The sweep' in the package's comment.
	Sweep(ctx context.Context, age time.Duration, limit int) ([]Orphan, error)

	// SweptBefore is the watermark: every row that a sweep has removed was recorded
	// before it. It is the zero time if there was no sweep. Only a primary answers.
	SweptBefore(ctx context.Context) (time.Time, error)

	// ProofLedger returns the ledger that Prove proves in place of this one, where no
	// canary may be written into the table that this one reads: it is in the same
	// database, waits by the same means, and is on a table of the bridge's own. It
	// returns nil where this ledger itself is proven.
	ProofLedger() Ledger

	// FallBack makes Settle wait in a second way, for good, where the first does not hold
	// on this server: Prove calls it with the error of the proof that failed. It returns
	// false if there is no second way, or it was taken before.
	FallBack(reason error) bool

	// FellBack returns the reason of the FallBack, or nil if there was none.
	FellBack() error
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

// Parked is a message that waits in the database.
type Parked struct {
	ID uuid.UUID
	// Message is the encoded message. To the ledger these are bytes of any value, 0
	// included. Every database takes 16 MiB, but for a MariaDB with its default
	// max_allowed_packet, which takes somewhat less (package mysql).
	Message []byte
}

// UnparkBytes is how much one Unpark takes, so that memory is bounded.
const UnparkBytes = 16 << 20

// UnparkPatience is how long the stage of an Unpark has, within the time that a
// transaction may be idle.
const UnparkPatience = 30 * time.Second

// An Orphan is a row of the ledger that has been there for long.
type Orphan struct {
	ID uuid.UUID
	// RecordedAt is when the row was inserted, or its message was unparked: an
	// instant by the clock of the database.
	RecordedAt time.Time
}

// MinSweepAge is the least age that a Sweep takes.
const MinSweepAge = time.Hour
