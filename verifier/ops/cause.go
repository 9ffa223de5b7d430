package ops

import (
	"errors"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// A Cause says why a session ended or could not start. It is the label of
// twoqueue_session_failures_total.
type Cause string

// The causes.
const (
	Database Cause = "database" // it is unavailable, or refuses a statement
	Schema   Cause = "schema"   // the ledger's tables are missing, or another release's
	Proof    Cause = "proof"    // the database cannot be trusted: rules 5 and 6 of package bridge, a standby, another ledger or server
	Broker   Cause = "broker"   // it is unavailable, or refuses an operation
	Queue    Cause = "queue"    // a queue exists with other properties than it must have
)

var causes = []Cause{Database, Schema, Proof, Broker, Queue}

// CauseOf returns the cause of an error of verifier.New, Verifier.Run, State.Err or
// Observer.SessionEnded. Any other error counts as the database's, because its driver's errors have
// no common type.
func CauseOf(err error) Cause {
	is := func(targets ...error) bool {
		return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
	}
	switch {
	case is(bridge.ErrNoSchema):
		return Schema
	case is(bridge.ErrProof, bridge.ErrOtherInstance, bridge.ErrNotPrimary, bridge.ErrReadOnly, bridge.ErrOtherLedger):
		return Proof
	case errors.As(err, new(*bridge.QueueMismatch)):
		return Queue
	case is(bridge.ErrURL, bridge.ErrCredentials, bridge.ErrUnavailable, bridge.ErrBlocked), errors.As(err, new(*amqp.Error)):
		return Broker
	}
	return Database
}
