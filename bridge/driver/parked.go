package driver

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
)

// Parked is a message that waits in the database.
type Parked struct {
	ID uuid.UUID
	// Message is the encoded message. To the ledger these are bytes, as many as the
	// database takes in one value, 0 among them: 16 MiB at least, but somewhat less on a
	// MariaDB as it comes (package mysql).
	Message []byte
}

// A Parker is a Recorder that can keep a message in the database, for a sender that
// cannot reach the broker or does not want to. The ledgers of the databases are
// Parkers, those on an OwnTable are not.
//
// A parked message lies in the table bridge_parked, beside its row in the ledger.
// That table is empty where nobody parks, and costs nothing then.
type Parker interface {
	Recorder

	// Park stores messages, all or none, in the caller's transaction, in which their
	// IDs must have been recorded before: a parked message without a row in the ledger
	// counts as forwarded. A rollback, also one to an earlier savepoint, takes them
	// back. The errors are Record's; after one the caller must roll back.
	//
	// A message may be staged as well, which happens where a confirm is only late.
	// It is then delivered twice, with the same ID.
	Park(ctx context.Context, tx bridge.Tx, messages []Parked) error
}

// An Unparker is a Ledger from which a verifier takes parked messages back. Who can
// Park can Unpark.
type Unparker interface {
	Ledger

	// Unpark takes parked messages, calls stage with them, which publishes them to the
	// staging queue, and removes them. It takes at most limit of them, which is positive,
	// or as many as one statement of the database takes (500, 1000), and no more than
	// UnparkBytes together, but one at least; of committed transactions, and none that
	// another Unpark has taken and not yet removed; in the order in which the database
	// sorts IDs, and only those that come after the ID after there, which is the zero
	// UUID at first: so one that the broker refuses can be passed by. It returns how many
	// it has removed: 0 if there were none to take.
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
	// Sweeper). One whose row somebody else has locked at that moment stays parked.
	Unpark(ctx context.Context, after uuid.UUID, limit int, stage func(ctx context.Context, messages []Parked) error) (int, error)

	// CountParked counts the parked messages of committed transactions, up to limit.
	// It waits for nobody; what an Unpark has taken may be counted or not.
	CountParked(ctx context.Context, limit int) (int, error)
}

// UnparkBytes is how much one Unpark takes, so that memory is bounded.
const UnparkBytes = 16 << 20

// UnparkPatience is how long the stage of an Unpark has, within the time that a
// transaction may be idle.
const UnparkPatience = 30 * time.Second
