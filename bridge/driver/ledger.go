package driver

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
)

// ErrNoConnection: the server opens no further connection at present: its limit or the login's is
// reached. Open connections go on working.
var ErrNoConnection = errors.New("the database opens no further connection")

// A Recorder is the part of a ledger that a sender uses.
type Recorder interface {
	Fence

	// Identity is the UUID that was made when the ledger's tables were created. An own table has a
	// UUID derived from it (bridge.OwnTable). A message is judged only by the ledger whose identity
	// it carries.
	Identity() uuid.UUID

	// Features returns the differences of this ledger from others. They never change.
	Features() Features

	// Record inserts a row for each entry, all or none, in the caller's transaction. A rollback,
	// also one to an earlier savepoint, removes them, and so does a crash before the commit. If
	// another open transaction has recorded one of the IDs, Record waits for it. It returns
	// bridge.ErrDuplicateID if one of the IDs is recorded already, bridge.ErrOtherLedger if tx
	// belongs to a database whose ledger has another identity, and bridge.ErrNoSchema if that
	// database has no ledger. After an error the caller must roll back.
	//
	// On an own table Record inserts nothing. It returns bridge.ErrNoRow for an ID without a row,
	// and an error that wraps errors.ErrUnsupported for an entry with a message.
	Record(ctx context.Context, tx bridge.Tx, entries []Entry) error

	// Cancel deletes the row of id in the caller's transaction, if the row carries a message of
	// which no copy can exist (DueRow.Unpublished), and reports whether it did. A rollback brings
	// the row back. Cancel waits for a transaction that has changed the row. Of a Cancel and a
	// Claim at the same moment one gets the row, and Claim skips the row while the caller's
	// transaction is open. If two transactions cancel missing rows, neither blocks a Record of the
	// other, or of a third transaction. A clock that goes back must not undo the claim of a row:
	// Cancel relies on the database's clock not going back by StageAgainAfter.
	Cancel(ctx context.Context, tx bridge.Tx, id uuid.UUID) (bool, error)
}

// Features are the differences between ledgers that callers must respect. A denied method returns
// an error that wraps errors.ErrUnsupported. Only a ledger on an own table may deny Carries and
// Sweeps.
type Features struct {
	// Carries: rows can carry messages. If false, Record of an entry with a message is denied, and
	// so are Cancel, Due, Claim and Touch.
	Carries bool
	// Sweeps: rows whose messages are gone can be found and removed. If false, Orphans, Sweep and
	// SweptBefore are denied, and no sweep has ever removed a row.
	Sweeps bool
	// KeepsRows: the rows are the application's (bridge.OwnTable). Record inserts none and Forget
	// deletes none, so a redelivered message is forwarded again. The rows have no time of the
	// record: Recent is denied.
	KeepsRows bool
}

// A Ledger is everything that a database implements for senders and verifiers. All methods may be
// called concurrently. After an error all, some or nothing may have been changed.
type Ledger interface {
	Recorder
	RecordedRows
	Provable
}

// RecordedRows is the part of a ledger on the rows that Record has inserted: a verifier judges by it
// after the proof, stages again and cleans up. The commands that inspect a ledger use it too.
type RecordedRows interface {
	// Identity and Features: see Recorder.
	Identity() uuid.UUID
	Features() Features

	// DB is the pool that the ledger works on.
	DB() *sql.DB

	// Committed returns the IDs whose transaction has certainly committed, and the answering
	// instance, in the same statement. The other IDs may be uncommitted, rolled back, or committed
	// a moment ago. It never waits for a transaction that has recorded IDs; work on the whole
	// table, such as ALTER TABLE, may block it until ctx ends. If it finds nothing, the instance
	// may be "": without ids it sends no statement, and a server may not have answered in time.
	Committed(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, Instance, error)

	// Settle waits until the transaction that recorded id has ended, and returns the outcome and
	// the answering instance, in the same statement. The server ends the wait after wait, rounded
	// up to its unit (a millisecond; a second on MySQL); the outcome is then StillOpen, and the
	// instance is "". An id without a row and without an open transaction is RolledBack, so Settle
	// must be called only for an id that was recorded before. With an error the outcome is
	// StillOpen: nothing is known.
	Settle(ctx context.Context, id uuid.UUID, wait time.Duration) (Outcome, Instance, error)

	// Recent is Committed, limited to rows that were recorded at most age ago, by the database's
	// clock, and not in its future. The clock's ticks may make it wrong by a second.
	Recent(ctx context.Context, ids []uuid.UUID, age time.Duration) ([]uuid.UUID, Instance, error)

	// Forget deletes the rows of ids, and commits at once. It waits for no other transaction for
	// long: it skips rows locked by another transaction, and returns their IDs in left. Such a row
	// may be gone a moment later; call Forget again to find out. Missing rows are no error. The
	// server ends a Forget by itself, so a client that vanishes leaves no lock. (On SQLite a writer
	// locks the whole file, and left is then all of ids.)
	Forget(ctx context.Context, ids []uuid.UUID) (left []uuid.UUID, err error)

	// Check reports whether the ledger can be used now. The database must be reachable, the
	// identity unchanged (else bridge.ErrOtherLedger), the schema's version supported
	// (bridge.ErrNoSchema), and the server a primary that takes writes (bridge.ErrNotPrimary,
	// bridge.ErrReadOnly).
	Check(ctx context.Context) error

	// Due lists the carried rows of committed transactions whose stage time has come, at most
	// limit, and returns the database's time of the look. The rows come in the order of their stage
	// times, and rows of one stage time in the database's order of IDs. The list begins after the
	// stage time and the ID of after: the zero DueRow begins at the first row, the last row of a
	// list at the next row, and a DueRow without an ID at its stage time. Due only reads and waits
	// for no transaction. A row locked by another transaction may be missing.
	Due(ctx context.Context, after DueRow, limit int) ([]DueRow, time.Time, error)

	// Claim moves the stage time of each row on, if it is still the given one, and returns the
	// messages of the moved rows. No crash of the database undoes it then. The new stage time is
	// the database's present time plus the age of the row, but at least StageAgainAfter and at most
	// StageAgainWithin from now. It is after the time of the record even if the clock has gone
	// back: Cancel relies on it. Claim commits at once, so no lock is held while the caller
	// publishes. After a crash between Claim and the confirm the row is due again at its new stage
	// time. Of two concurrent Claims of one row, one gets the message. Claim skips rows locked by
	// another transaction. It loads all messages at once: the caller bounds them by DueRow.Bytes.
	// It takes at most the rows of one statement (500 on SQL Server, 1000 elsewhere).
	Claim(ctx context.Context, rows []DueRow) ([]Carried, error)

	// Touch moves the stage time of the carried rows of ids on, as Claim does, and commits at once.
	// It skips rows that another transaction has locked or has not committed. Missing rows and rows
	// without a message are no error. The caller does not learn which rows were skipped.
	Touch(ctx context.Context, ids []uuid.UUID) error

	// Orphans lists at most limit committed rows that were recorded more than age ago and carry no
	// message, the oldest first. It only reads, the whole ledger once, and waits for no sender. A
	// locked row may be missing.
	Orphans(ctx context.Context, age time.Duration, limit int) ([]Orphan, error)

	// Sweep removes the rows that Orphans lists, and returns the removed ones. An age below
	// MinSweepAge is an error. It first raises the watermark above the youngest of them, and
	// commits that; without such rows it changes nothing. Then it removes them, at most a thousand
	// in one transaction. It skips rows locked by another transaction. (On SQLite it waits for
	// other writers. On a server that cannot skip locked rows it fails instead; see the package.)
	// After an error or a crash the watermark may be raised and some of the rows removed; with an
	// error Sweep returns the removed ones. 'The sweep' in the package's comment shows why it loses
	// no message.
	Sweep(ctx context.Context, age time.Duration, limit int) ([]Orphan, error)

	// SweptBefore is the watermark: every row removed by a sweep was recorded before it. It is the
	// zero time if there was no sweep. Only a primary answers.
	SweptBefore(ctx context.Context) (time.Time, error)
}

// An Instance names one run of a database server, in words for an error or a log; on SQLite it
// names the file. Two connections to the same server have equal instances. Another server, a copy
// of the database with the same identity, or the same server after a restart is another instance,
// as far as the server shows it (see the database's package).
type Instance string

// An Outcome is the end of the transaction that recorded an ID.
type Outcome int

const (
	// StillOpen: nothing is known yet. It is the zero value on purpose.
	StillOpen Outcome = iota
	// Committed: the row is there.
	Committed
	// RolledBack: the row is missing, and no open transaction can still commit it.
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
	// RecordedAt is the time of the INSERT, by the database's clock.
	RecordedAt time.Time
}

// MinSweepAge is the least age that Sweep accepts.
const MinSweepAge = time.Hour
