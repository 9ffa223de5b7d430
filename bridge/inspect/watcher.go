package inspect

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A Holder is a database session with an open transaction, as far as the login may
// see it: what it may not see is empty.
type Holder struct {
	Session   string    `json:"session"`   // the server's name for it: process ID, session ID, connection ID, prepared transaction
	Login     string    `json:"login"`     // as whom it is logged in
	Program   string    `json:"program"`   // what the client calls itself
	Host      string    `json:"host"`      // the client's name or address
	State     string    `json:"state"`     // in the server's words, such as "idle in transaction", and for whom it waits itself
	Since     time.Time `json:"since"`     // when the transaction began, by the database's clock, to the second at least; zero if it is not told
	Statement string    `json:"statement"` // the last statement, cut to 1000 bytes; the server's text, so literals in it are seen
}

// A Watcher is a Ledger that can tell whose open transaction a message waits for. It
// is for people: nothing of it may decide about a message.
type Watcher interface {
	driver.Ledger

	// Holders tells which sessions' open transactions a Settle of id would wait for
	// now; none if it would not wait, or if the login may not see them. To find out,
	// it waits as a Settle does, for a second or two at most, and asks on a second
	// connection; it leaves nothing behind. If the pool has no second connection in time that
	// is an error. A transaction that has the whole table locked is a holder as well.
	Holders(ctx context.Context, id uuid.UUID) ([]Holder, error)

	// OpenTransactions lists sessions whose open transaction has written to the ledger
	// and began age ago or before, the oldest first, at most limit of them. Without
	// the rights to see others' sessions it returns what the login may see. Work of
	// verifiers is among them; above an age of some seconds it is not. What counts as
	// written to the ledger differs between databases: see their packages. A negative
	// age, and a limit below 1, is an error.
	OpenTransactions(ctx context.Context, age time.Duration, limit int) ([]Holder, error)
}
