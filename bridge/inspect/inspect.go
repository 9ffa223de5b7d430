package inspect

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// A Diagnoser tells whether the settings of a database are right.
type Diagnoser interface {
	// Diagnose checks the requirements in the comment of package postgres, sqlserver, mysql or
	// sqlite, each once. A check that has nothing to say may be missing. It sees what its login
	// may see, which should be the verifier's; it sees little of a sender's settings. It
	// changes nothing, and reads the whole ledger once. It does not prove that lookups wait:
	// driver.Prove does. With an error it returns the findings so far.
	Diagnose(ctx context.Context) ([]Finding, error)
}

// A Watcher tells whose open transactions messages wait for.
type Watcher interface {
	// Holders returns the sessions whose open transactions a Settle of id would wait for now.
	// It returns none if Settle would not wait, or if the login may not see them. To find out,
	// it waits as a Settle does, for a second or two at most, and asks on a second connection.
	// It leaves nothing behind. If the pool has no second connection in time, it returns an
	// error. A transaction that has locked the whole table is a holder as well.
	Holders(ctx context.Context, id uuid.UUID) ([]Holder, error)

	// OpenTransactions lists at most limit sessions whose open transaction has written to the
	// ledger and began at least age ago, the oldest first. It returns only sessions that the
	// login may see; nil instead of an empty list if it may not see those of others. With an age
	// below some seconds, verifiers' own work is among them. What counts as written to the ledger
	// differs between databases; each database's package says it. A negative age, or a limit below
	// 1, is an error.
	OpenTransactions(ctx context.Context, age time.Duration, limit int) ([]Holder, error)
}

// A CarriedReader tells about the rows of a ledger that carry messages. It sees those of committed
// transactions, whether their stage time has come or not. A row that another transaction has locked
// may be missing. It reads no message, changes nothing, and waits for no transaction. On an own table
// its methods return an error that wraps errors.ErrUnsupported.
type CarriedReader interface {
	// CountCarried counts the rows, up to limit.
	CountCarried(ctx context.Context, limit int) (int, error)

	// CarriedRows lists at most limit rows, the earliest stage time first.
	CarriedRows(ctx context.Context, limit int) ([]CarriedRow, error)

	// CountDelayed counts the rows of delayed messages (bridge.Message.NotBefore) that wait for their
	// time, up to limit. That time is in the future by the database's clock, so no copy was published.
	CountDelayed(ctx context.Context, limit int) (int, error)

	// DelayedRows lists at most limit of the rows that CountDelayed counts, the earliest time first.
	DelayedRows(ctx context.Context, limit int) ([]CarriedRow, error)

	// CarriedRow returns the row of id, or nil if no committed row of id carries a message.
	CarriedRow(ctx context.Context, id uuid.UUID) (*CarriedRow, error)
}

// An Advancer changes when a delayed message is staged.
type Advancer interface {
	// Advance makes the delayed message of id due at once, if it waits for its time, and tells whether
	// it did. The row's recorded_at becomes the present time too, so the message still counts as
	// unpublished, and a Cancel takes it back until a verifier claims it. Advance is one statement that
	// commits by itself. It waits for a transaction that has changed the row, and then looks at the
	// row again: of an Advance and a Cancel that commits, one gets the row. After an error the message
	// is due or not. On an own table the error wraps errors.ErrUnsupported.
	Advance(ctx context.Context, id uuid.UUID) (bool, error)
}

// A CarriedRow is a row of the ledger that carries a message.
type CarriedRow struct {
	ID uuid.UUID
	// RecordedAt and StageAt are instants by the database's clock, to the millisecond.
	RecordedAt, StageAt time.Time
	// Bytes is the length of the message.
	Bytes int64
}

// Unpublished tells that no copy of the message was ever published. The RecordedAt of a delayed row may
// be after its StageAt: SQLite rounds it up to the second.
func (r CarriedRow) Unpublished() bool { return !r.StageAt.After(r.RecordedAt) }

// Delayed tells that the message waits for its time: no copy was published, and at is before it.
func (r CarriedRow) Delayed(at time.Time) bool { return r.Unpublished() && r.StageAt.After(at) }

// A Finding is the answer to one question of a Diagnose.
type Finding struct {
	Check string `json:"check"`         // what was looked at, a few words, the same in every run
	Level Level  `json:"level"`         // how it stands
	Text  string `json:"text"`          // what was found
	Fix   string `json:"fix,omitempty"` // what to do about it; empty if it is well
}

// A Level says how serious a Finding is.
type Level string

// The levels of a Finding.
const (
	OK      Level = "ok"
	Warning Level = "warning" // it works, and costs something or may fail later
	Error   Level = "error"   // messages can be lost, or nothing works
	Unknown Level = "unknown" // the login may not look
)

// A Holder is a database session with an open transaction. Fields that the login may not see
// are empty.
type Holder struct {
	Session   string    `json:"session"`   // the server's name for it: process ID, session ID, connection ID, prepared transaction
	Login     string    `json:"login"`     // as whom it is logged in
	Program   string    `json:"program"`   // what the client calls itself
	Host      string    `json:"host"`      // the client's name or address
	State     string    `json:"state"`     // in the server's words, such as "idle in transaction", and for whom it waits itself
	Since     time.Time `json:"since"`     // when the transaction began, by the database's clock, to the second at least; zero if it is not told
	Statement string    `json:"statement"` // the last statement, cut to 1000 bytes; the server's text, so literals in it are seen
}
