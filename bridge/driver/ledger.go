package driver

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
)

// ErrNoConnection: the server opens no further connection at present, since its limit or the
// login's is reached. Connections that are open go on working.
var ErrNoConnection = errors.New("the database opens no further connection")

// A Recorder is what a sender needs of a ledger.
type Recorder interface {
	Fence

	// Identity is the UUID that was made when the ledger's tables were created. For an own
	// table it is derived from that one (bridge.OwnTable). A message is judged only by the
	// ledger whose identity it carries.
	Identity() uuid.UUID

	// Features says what this ledger can do. It never changes.
	Features() Features

	// Record inserts a row for each entry, all or none, in the caller's transaction. A rollback,
	// also one to an earlier savepoint, takes them back, and so does a crash before the commit. If
	// another open transaction has recorded one of the IDs, Record waits for it. It returns
	// bridge.ErrDuplicateID if one of them is recorded already, bridge.ErrOtherLedger if tx
	// belongs to a database whose ledger has another identity, and bridge.ErrNoSchema if it has
	// none. After an error the caller must roll back.
	//
	// On an own table Record inserts nothing. It returns bridge.ErrNoRow for an ID without a row,
	// and an error that wraps errors.ErrUnsupported for an entry with a message.
	Record(ctx context.Context, tx bridge.Tx, entries []Entry) error

	// Cancel deletes the row of id in the caller's transaction, if the row carries a message of which
	// no copy can exist (DueRow.Unpublished), and tells whether it did. A rollback brings the row
	// back. Cancel waits for a transaction that has changed the row. Of a Cancel and a Claim at the
	// same moment one gets the row, and Claim skips the row while the caller's transaction is open.
	// Where two transactions cancel rows that are gone, neither keeps the other, or a third one, from
	// recording. The claim of a row must not be undone by a clock that goes back: Cancel relies on the
	// database's clock not going back by StageAgainAfter.
	Cancel(ctx context.Context, tx bridge.Tx, id uuid.UUID) (bool, error)
}

// Features are the differences between ledgers that callers must know. A method that they deny
// returns an error that wraps errors.ErrUnsupported. Only a ledger on an own table may deny
// Carries and Sweeps.
type Features struct {
	// Carries: rows can carry messages. If not, Record of an entry with a message is denied, and so
	// are Cancel, Due, Claim and Touch.
	Carries bool
	// Sweeps: rows whose messages are gone can be found and removed. If not, Orphans,
	// Sweep and SweptBefore are denied, and no row was ever removed by a sweep.
	Sweeps bool
	// KeepsRows: the rows are the application's (bridge.OwnTable). Record inserts none and
	// Forget deletes none, so a redelivered message is forwarded again. Nothing tells when a row
	// was recorded: Recent is denied.
	KeepsRows bool
}

// A Ledger is what a verifier judges by. All methods may be called concurrently. After an error
// all, some or nothing may have been changed.
type Ledger interface {
	Recorder

	// DB is the pool that the ledger works on.
	DB() *sql.DB

	// Instance names the server on which tx is open.
	Instance(ctx context.Context, tx bridge.Tx) (Instance, error)

	// Committed returns those of ids whose transaction has certainly committed, and the instance
	// that says so, in the same statement. The other IDs may be uncommitted, rolled back, or
	// committed a moment ago. It never waits for a transaction that has recorded IDs; work on the
	// whole table, such as ALTER TABLE, may keep it waiting until ctx ends. If it finds nothing, the
	// instance may be "": without ids it asks nothing, and a server may not have answered in time.
	Committed(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, Instance, error)

	// Settle waits until the transaction that recorded id has ended, and returns how, and the
	// instance that says so, in the same statement. The server ends the wait after wait, rounded
	// up to its unit (a millisecond; a second on MySQL); the outcome is then StillOpen, and the
	// instance is "". An id without a row and without an open transaction is RolledBack, so Settle
	// must be called only for an id that was recorded before. With an error the outcome is
	// StillOpen: nothing is known.
	Settle(ctx context.Context, id uuid.UUID, wait time.Duration) (Outcome, Instance, error)

	// Recent returns those of ids whose transaction has certainly committed and that were recorded
	// at most age ago, by the database's clock, and not in its future; and the instance that says
	// so. It is Committed otherwise. The clock's ticks may make it wrong by a second.
	Recent(ctx context.Context, ids []uuid.UUID, age time.Duration) ([]uuid.UUID, Instance, error)

	// Forget deletes the rows of ids, and commits at once. It waits for no other transaction
	// for long: it skips a row that another one has locked, and returns its ID in left. Such a
	// row may be gone a moment later; Forget it again to know. Missing rows are no error. The
	// server ends what Forget has begun by itself, so a client that vanishes leaves no lock.
	// (On SQLite a writer locks the whole file, and left is then all of ids.)
	Forget(ctx context.Context, ids []uuid.UUID) (left []uuid.UUID, err error)

	// Check tells whether the ledger can be used now. The database must be reachable, the
	// identity unchanged (else bridge.ErrOtherLedger), the schema's version known
	// (bridge.ErrNoSchema), and the server a primary that takes writes (bridge.ErrNotPrimary, bridge.ErrReadOnly).
	Check(ctx context.Context) error

	// Due lists the carried rows of committed transactions whose stage time has come, at most limit,
	// and returns the database's time of the look. The rows come in the order of their stage times,
	// and those of one stage time in the order in which the database sorts IDs. The list begins
	// after the stage time and the ID of after: the zero DueRow begins at the first row, the last
	// row of a list at the next one, and a DueRow without an ID at its stage time. Due only reads
	// and waits for no transaction. A row that another transaction has locked may be missing.
	Due(ctx context.Context, after DueRow, limit int) ([]DueRow, time.Time, error)

	// Claim moves the stage time of each row on, if it still is the given one, and returns the
	// messages of the rows that it has moved. No crash of the database undoes it then. The new stage time is the database's present time and,
	// once more, the time since the row was recorded, but at least StageAgainAfter and at most
	// StageAgainWithin. It is after the time of the record even if the clock has gone back: Cancel relies on it. Claim commits at once, so no lock is held while the caller publishes. After
	// a crash between Claim and the confirm the row is due again at its new stage time. Of two
	// Claims of the same row at once, one gets the message. Claim skips rows that another
	// transaction has locked. It loads all messages at once: the caller bounds them by
	// DueRow.Bytes. It takes at most as many rows as one statement takes (500 on SQL Server, 1000
	// elsewhere).
	Claim(ctx context.Context, rows []DueRow) ([]Carried, error)

	// Touch moves the stage time of the carried rows of ids on, as Claim does, and commits at once. It
	// skips rows that another transaction has locked or has not committed. Missing rows and rows
	// without a message are no error.
	Touch(ctx context.Context, ids []uuid.UUID) error

	// Orphans lists at most limit committed rows that were recorded more than age ago and carry no
	// message, the oldest first. It only reads, the whole ledger once, and waits for no sender. A
	// locked row may be missing.
	Orphans(ctx context.Context, age time.Duration, limit int) ([]Orphan, error)

	// Sweep removes the rows that Orphans lists, and returns those that it has removed. An age
	// below MinSweepAge is an error. It first raises the watermark above the youngest of them,
	// and commits that; without such rows it changes nothing. Then it removes them, at most a
	// thousand in one transaction. It skips rows that another transaction has locked. (On
	// SQLite it waits for other writers. If a server cannot skip locked rows it fails instead;
	// see the package.) After an error or a crash the watermark may be raised and some of the
	// rows removed; with an error Sweep returns those. 'The sweep' in the package's comment
	// says why it loses no message.
	Sweep(ctx context.Context, age time.Duration, limit int) ([]Orphan, error)

	// SweptBefore is the watermark: every row that a sweep has removed was recorded
	// before it. It is the zero time if there was no sweep. Only a primary answers.
	SweptBefore(ctx context.Context) (time.Time, error)

	// ProofLedger returns the ledger that Prove proves instead of this one, if no canary may be
	// written into the table that this one reads. It is in the same database, waits in the same
	// way, and is on a table of the bridge's own. ProofLedger returns nil if this ledger itself
	// is proven. The ProofLedger of a ProofLedger is one on which Prove proves a rollback besides:
	// its Record may write canaries that are never committed.
	ProofLedger() Ledger

	// FallBack makes Settle wait in a second way, for good, if the first does not work on this
	// server. Prove calls it with the error of the failed proof. It returns false if there is
	// no second way, or if it is in use already.
	FallBack(reason error) bool

	// FellBack returns the reason of the FallBack, or nil if there was none.
	FellBack() error
}

// An Instance names one run of a database server, in words for an error or a log; on SQLite it
// names the file. Two connections that lead to the same server have equal instances. Another
// server, a copy of the database with the same identity, or the same server after a restart is
// another instance, as far as the server tells (the database's package says how far).
type Instance string

// An Outcome says how the transaction that recorded an ID ended.
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

// An Orphan is an old row of the ledger.
type Orphan struct {
	ID uuid.UUID
	// RecordedAt is when the row was inserted: an instant by the clock of the database.
	RecordedAt time.Time
}

// MinSweepAge is the least age that a Sweep takes.
const MinSweepAge = time.Hour
