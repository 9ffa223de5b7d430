package driver

import (
	"context"
	"database/sql"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

// An Inbox is everything that a database implements for receivers: the tables of processed keys, of
// pending messages (claimed and not yet done), of marks, and of messages that have come too early.
// Each strategy takes its part.
//
// All methods except DB and Transient work in the caller's transaction; a rollback, and a crash
// before the commit, undo them. After an error the caller must roll back. consumer and key are 1 to
// 255 bytes each, without a NUL byte; anything else is an error. Times are the database's own, so
// that the clocks of its clients do not matter.
type Inbox interface {
	PendingMessages
	Keeper
}

// Claims is the table of processed keys. The database stores the keys in the order of their bytes,
// so Claimed reads them in that order.
type Claims interface {
	Transactions

	// DB is the pool that the inbox was opened on. A receiver whose transactions do not begin by
	// database/sql uses it to see a claim from outside, and to purge.
	DB() *sql.DB

	// Claim records, in the caller's transaction, that consumer processes keys. It returns the new
	// keys, in their order; the others were claimed before, by a committed transaction or by this
	// one. While another open transaction holds one of the claims, Claim waits for its end. A
	// rollback undoes all claims.
	//
	// The keys must be in ascending order of their bytes, without duplicates; anything else is an
	// error. They are claimed in this order: so of two transactions with common keys one waits for
	// the other, and there is no deadlock. If the server sees a deadlock all the same, it ends one
	// of the two with an error that is Transient.
	Claim(ctx context.Context, tx bridge.Tx, consumer string, keys []string) (fresh []string, err error)

	// Claimed returns up to limit claims in the order of the keys' bytes, beginning after a
	// given key.
	Claimed(ctx context.Context, tx bridge.Tx, consumer, after string, limit int) ([]Claimed, error)

	// Forget deletes the claims of keys that are older than age, and returns their number. It locks
	// no other claims, and waits for none.
	Forget(ctx context.Context, tx bridge.Tx, consumer string, keys []string, age time.Duration) (int64, error)
}

// A Claimed is a key that was claimed.
type Claimed struct {
	Key string
	Age time.Duration // since the claim
}

// A State is the state of a pending message.
type State string

// The states of a pending message.
const (
	Started  State = "started"  // its effect may be under way, until it is due; then it is in doubt
	Doubtful State = "doubtful" // it is unknown whether its effect was done
	Ready    State = "ready"    // its work is to be done as soon as it is due
	Failed   State = "failed"   // given up
)

// A Pending is a message that is claimed and not done.
type Pending struct {
	Key      string
	State    State
	Run      string    // names the worker: taking the row writes a new value, and so excludes the worker before
	Attempts int       // how often the row was taken
	Since    time.Time // when it was added, to the millisecond
	Error    string    // error of the latest attempt, or the doubt; cut off after 1,000 characters
	Message  []byte    // the message if it is kept here; empty if only a queue has it, and from ListPending
	Stored   bool      // the row has a message; ignored when a row is written
}

// PendingMessages is the table of pending messages, beside the claims' table. A row exists from the
// claim of its key until its work is done.
type PendingMessages interface {
	Claims

	// AddPending inserts p, due after a time. If the key is pending already, it returns false and
	// changes nothing. It waits for an open transaction that inserts or deletes the same row.
	AddPending(ctx context.Context, tx bridge.Tx, consumer string, p Pending, due time.Duration) (bool, error)

	// LookUp reports whether key is claimed, and returns its pending message, nil if there is none;
	// both as of one moment. A key that is claimed and not pending is done.
	LookUp(ctx context.Context, tx bridge.Tx, consumer, key string) (claimed bool, p *Pending, err error)

	// ChangePending sets the row of p.Key to p if its Run is still run, and reports whether it was.
	// due counts from now. Since stays, and so does Message if p has none.
	ChangePending(ctx context.Context, tx bridge.Tx, consumer, run string, p Pending, due time.Duration) (bool, error)

	// AttachMessage stores the message in a row that has this Run and no message yet, in any state,
	// and reports whether there was such a row.
	AttachMessage(ctx context.Context, tx bridge.Tx, consumer, key, run string, message []byte) (bool, error)

	// RemovePending deletes the row if its Run is still run, and reports whether it was. It locks
	// the row until the end of tx.
	RemovePending(ctx context.Context, tx bridge.Tx, consumer, key, run string) (bool, error)

	// ReleasePending is RemovePending for a row without a message, and deletes the claim of the key
	// too, if there is one: the message counts as new again.
	ReleasePending(ctx context.Context, tx bridge.Tx, consumer, key, run string) (bool, error)

	// TakePending finds, among the rows in a state that have a message and are not locked by
	// others, the row that has been due for longest. It locks that row until the end of tx, in
	// which the caller should call ChangePending. It returns nil if none is due. It must be the
	// first statement of tx.
	TakePending(ctx context.Context, tx bridge.Tx, consumer string, state State) (*Pending, error)

	// DoubtOverdue makes all overdue started messages doubtful, and returns their number. It may
	// skip rows locked by others.
	DoubtOverdue(ctx context.Context, tx bridge.Tx, consumer string) (int64, error)

	// ListPending returns up to limit pending messages in a state, in the order of their keys,
	// beginning after a given key. It reads no messages: Message is empty even if Stored is true.
	ListPending(ctx context.Context, tx bridge.Tx, consumer string, state State, after string, limit int) ([]Pending, error)

	// CountPending returns how many messages are pending in each state.
	CountPending(ctx context.Context, tx bridge.Tx, consumer string) (map[State]int64, error)
}
