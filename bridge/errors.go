package bridge

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
)

// The errors of this module. Compare with errors.Is.
var (
	// ErrDuplicateID: a committed transaction has put this ID into the ledger, or it was given twice
	// in one call. Roll back. Another attempt with the same ID fails until the first message is
	// forwarded and its row deleted. After that the ledger finds no repetition; the receiver's inbox
	// does.
	ErrDuplicateID = errors.New("message ID is recorded already")

	// ErrOtherLedger: this database holds another ledger than the one that was opened, or none.
	ErrOtherLedger = errors.New("ledger of another identity")

	// ErrNoRow: the ledger is an OwnTable, and the transaction has no row with the
	// message's ID. Insert it first.
	ErrNoRow = errors.New("no row with the message ID")

	// ErrTxEnded: the transaction ended before its COMMIT. The server rolled it back after an
	// ignored error, such as a deadlock, or a statement such as CREATE TABLE committed it. Later
	// statements were committed one by one.
	ErrTxEnded = errors.New("the transaction ended before its commit")

	// ErrCommitUnknown: the COMMIT was sent, and its answer is missing or an error. The transaction
	// may have committed.
	ErrCommitUnknown = errors.New("unknown whether the transaction committed")

	// ErrNotBegun: the transaction did nothing. No connection to the database could be opened over the
	// network, or the connection was lost first, and so was every connection tried after it.
	ErrNotBegun = errors.New("no connection to begin a transaction on")

	// ErrNoSchema: the tables are missing, or of a version that this release does not work with.
	// The text names the function to call, except with ErrLaterSchema.
	ErrNoSchema = errors.New("schema not usable")

	// ErrLaterSchema comes with ErrNoSchema: the tables are too new for this release. Use a
	// later release of the program.
	ErrLaterSchema = errors.New("tables of a later release")

	// ErrNotPrimary: the database is a standby, a readable secondary or read-only, or
	// another primary writes to its ledger.
	ErrNotPrimary = errors.New("database is not a writable primary")

	// ErrOtherInstance: connections of one pool reach different servers, or the server has been
	// restarted since the proof. The text names both. No outcome of the other server was believed
	// (rule 6 in the package's comment).
	ErrOtherInstance = errors.New("answer from another server than the proved one")

	// ErrReadOnly: the transaction is read-only. It was begun so (sql.TxOptions.ReadOnly), or by a
	// setting of the login or the connection (PostgreSQL: default_transaction_read_only; MySQL and
	// MariaDB: transaction_read_only, tx_read_only). On a PostgreSQL standby, where every
	// transaction is read-only, the error is ErrNotPrimary, unless the ledger's pool has no free
	// connection within a second to find out.
	ErrReadOnly = errors.New("transaction is read-only; begin it read-write, on the primary")

	// ErrProof: the database does not make a lookup wait for an open transaction, so no verifier
	// may judge by it (rule 5 in the package's comment).
	ErrProof = errors.New("the ledger's lookup is unreliable on this database")

	// ErrInvalidMessage: the message can never be sent as it is; the text names the
	// field. Nothing of it was sent.
	ErrInvalidMessage = errors.New("invalid message")

	// ErrMalformed: a staged message does not follow the wire format.
	ErrMalformed = errors.New("malformed staged message")

	// ErrUnavailable: there is no connection to the broker, or it ended, or the broker does not take
	// messages fast enough, or ErrConnectionLimit.
	ErrUnavailable = errors.New("broker unavailable")

	// ErrConnectionLimit comes with ErrUnavailable: the user, the virtual host or the node may have
	// no further connection. RabbitMQ counts a closed connection for a moment longer.
	ErrConnectionLimit = errors.New("limit of connections reached")

	// ErrURL: Dial does not accept this broker URL. The text gives the reason, and no part of the
	// URL.
	ErrURL = errors.New("broker URL is not usable")

	// ErrCredentials: the broker refuses the user, the password or the virtual host. RabbitMQ
	// refuses a password by closing the connection without a reason, so a broker that goes away at
	// that moment looks the same.
	ErrCredentials = errors.New("broker refuses the login")

	// ErrBlocked: the broker accepts no messages at present (memory or disk alarm).
	ErrBlocked = errors.New("broker blocks publishing")

	// ErrUnchecked: the login has no right to configure a queue, so the broker does not compare
	// its arguments. If the login has no right to the queue at all, RabbitMQ 4.3 does not even
	// tell whether it exists. A queue with other arguments may lose messages: if a quorum queue
	// has no x-delivery-limit, RabbitMQ 4 drops a message that 20 lost sessions have held.
	ErrUnchecked = errors.New("its arguments are unchecked: the login has no right to configure it")

	// ErrReturned: the broker found no queue for the message. If a sender returns it, the
	// staging queue, or its binding to Topology.Exchange, is missing.
	ErrReturned = errors.New("message returned as unroutable")

	// ErrNacked: the broker refused the message, as a full queue does.
	ErrNacked = errors.New("message refused by the broker")

	// ErrUnconfirmed: the broker did not confirm the message in time, and may have it.
	ErrUnconfirmed = errors.New("message not confirmed")
)

// A PublishError names the message that failed, and the reason. Find it with errors.As. Err wraps
// one of ErrReturned, ErrNacked, ErrUnconfirmed, ErrBlocked, ErrUnavailable and ErrInvalidMessage.
type PublishError struct {
	ID     uuid.UUID
	Target Target // where it was published to; the staging queue, if a sender returns it
	Err    error
}

func (e *PublishError) Error() string {
	return fmt.Sprintf("publish message %s to %s: %v", e.ID, e.Target, e.Err)
}

func (e *PublishError) Unwrap() error { return e.Err }

// Retryable reports whether another attempt, in a new transaction, may succeed without a repair:
// the broker was away, blocked, full, or did not confirm in time, or there was no connection to the
// database before the transaction did anything (ErrNotBegun). It returns false for other errors of
// the database, which it cannot classify; if the caller's context was cancelled (not if its
// deadline passed); and if the Broker was closed.
//
// If the broker has closed the channel because of a message (Refusal returns the reason), Retryable
// returns false for a missing right (403) and a missing exchange (404), which need a repair. It
// returns true for the rest, such as a message above max_message_size (406): if several messages
// were under way, another transaction's may be the culprit. So bound the attempts.
func Retryable(err error) bool {
	if errors.Is(err, context.Canceled) {
		return false
	}
	if refusal := Refusal(err); refusal != nil && (refusal.Code == amqp.AccessRefused || refusal.Code == amqp.NotFound) {
		return false
	}
	return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrBlocked) || errors.Is(err, ErrNotBegun) ||
		errors.Is(err, ErrNacked) || errors.Is(err, ErrUnconfirmed)
}

// cancelled adds context.Canceled to an error if the caller's context was cancelled.
func cancelled(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, context.Canceled) || !errors.Is(ctx.Err(), context.Canceled) {
		return err
	}
	return fmt.Errorf("%w: %w", err, context.Canceled)
}
