package inspect

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// A Diagnoser checks the settings of a database.
type Diagnoser interface {
	// Diagnose checks the requirements in the comment of package postgres, sqlserver, mysql or
	// sqlite, each once. A check without a result may be missing. Use the verifier's login:
	// Diagnose sees only the settings visible to the login, and few of a sender's. It changes
	// nothing, and reads the whole ledger once. It does not prove that lookups wait: proof.Prove
	// does. With an error it returns the findings so far.
	Diagnose(ctx context.Context) ([]Finding, error)
}

// A Watcher finds the open transactions that messages wait for.
type Watcher interface {
	// Holders returns the sessions whose open transactions a Settle of id would wait for now. It
	// returns none if Settle would not wait, or if the login may not see them. To find out, it
	// waits as a Settle does, for a second or two at most, and reads the holders over a second
	// connection. It leaves no trace. If the pool has no second connection in time, it returns an
	// error. A transaction that has locked the whole table is a holder too.
	Holders(ctx context.Context, id uuid.UUID) ([]Holder, error)

	// OpenTransactions lists at most limit sessions whose open transaction has written to the
	// ledger and began at least age ago, the oldest first. It returns only sessions that the login
	// may see. If the login may not see other logins' sessions, the result is nil, not an empty
	// list. With an age of a few seconds or less, verifiers' own sessions are in the list. Databases
	// differ in the writes that count; see each database's package. A negative age, or a limit below
	// 1, is an error.
	OpenTransactions(ctx context.Context, age time.Duration, limit int) ([]Holder, error)
}

// A CarriedReader reads the rows of a ledger that carry messages. It sees the rows of committed
// transactions, whether their stage time has come or not. A row locked by another transaction may
// be missing. It reads no message, changes nothing, and waits for no transaction. On an own table
// its methods return an error that wraps errors.ErrUnsupported.
type CarriedReader interface {
	// CountCarried counts the rows, up to limit.
	CountCarried(ctx context.Context, limit int) (int, error)

	// CarriedRows lists at most limit rows, the earliest stage time first.
	CarriedRows(ctx context.Context, limit int) ([]CarriedRow, error)

	// CountDelayed counts the rows of delayed messages (bridge.Message.NotBefore) whose time, by
	// the database's clock, has not come, up to limit. No copy of them was published.
	CountDelayed(ctx context.Context, limit int) (int, error)

	// DelayedRows lists at most limit of these rows, the earliest time first.
	DelayedRows(ctx context.Context, limit int) ([]CarriedRow, error)

	// CarriedRow returns the row of id, or nil if no committed row of id carries a message.
	CarriedRow(ctx context.Context, id uuid.UUID) (*CarriedRow, error)
}

// An Advancer changes the time at which a delayed message is staged.
type Advancer interface {
	// Advance makes the delayed message of id due at once, if its time has not come, and reports
	// whether it did. The row's recorded_at becomes the present time too, so the message still
	// counts as unpublished, and a Cancel can delete it until a verifier claims it. Advance is one
	// statement that commits by itself. It waits for a transaction that has changed the row, and
	// then checks the row again: of an Advance and a Cancel that commits, one gets the row. After
	// an error the message may or may not be due. On an own table the error wraps
	// errors.ErrUnsupported.
	Advance(ctx context.Context, id uuid.UUID) (bool, error)
}

// A CarriedRow is a row of the ledger that carries a message.
type CarriedRow struct {
	ID uuid.UUID
	// RecordedAt and StageAt are times of the database's clock, to the millisecond.
	RecordedAt, StageAt time.Time
	// Bytes is the length of the message.
	Bytes int64
}

// Unpublished reports that no copy of the message was ever published. The RecordedAt of a delayed
// row may be after its StageAt: SQLite rounds it up to the second.
func (r CarriedRow) Unpublished() bool { return !r.StageAt.After(r.RecordedAt) }

// Delayed reports that the message waits for its time: no copy was published, and at is before that
// time.
func (r CarriedRow) Delayed(at time.Time) bool { return r.Unpublished() && r.StageAt.After(at) }

// A Finding is the result of one check of a Diagnose.
type Finding struct {
	Check string `json:"check"`         // the name of the check, a few words, the same in every run
	Level Level  `json:"level"`         // how serious the result is
	Text  string `json:"text"`          // the result in words
	Fix   string `json:"fix,omitempty"` // the fix; empty if there is nothing to do
}

// A Level is the seriousness of a Finding.
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
	Login     string    `json:"login"`     // the login's name
	Program   string    `json:"program"`   // the client's name for itself
	Host      string    `json:"host"`      // the client's name or address
	State     string    `json:"state"`     // in the server's words, such as "idle in transaction", and the sessions that it waits for itself
	Since     time.Time `json:"since"`     // when the transaction began, by the database's clock, to the second at least; zero if unknown
	Statement string    `json:"statement"` // the last statement, cut to 1000 bytes; the server's text, so it shows literals
}
