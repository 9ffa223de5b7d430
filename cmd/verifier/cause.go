package main

import (
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// A cause is what keeps a verifier from working, as metrics and exit codes know it.
type cause string

const (
	causeDatabase cause = "database" // away, or refuses something
	causeSchema   cause = "schema"   // its tables are missing, or another release's
	causeProof    cause = "proof"    // it is not to be trusted: rule 5 of DESIGN, a standby, another ledger
	causeBroker   cause = "broker"   // away, or refuses something
	causeQueue    cause = "queue"    // exists with other properties than it must have
)

var causes = []cause{causeDatabase, causeSchema, causeProof, causeBroker, causeQueue}

// causeOf is the cause of a session's end, or of its not beginning.
func causeOf(err error) cause {
	var mismatch *bridge.QueueMismatch
	var refusal *amqp.Error
	var first *brokerError
	switch {
	case errors.Is(err, bridge.ErrNoSchema):
		return causeSchema
	case errors.Is(err, bridge.ErrProof), errors.Is(err, bridge.ErrNotPrimary), errors.Is(err, bridge.ErrOtherLedger):
		return causeProof
	case errors.As(err, &mismatch):
		return causeQueue
	case errors.Is(err, bridge.ErrUnavailable), errors.Is(err, bridge.ErrCredentials), errors.Is(err, bridge.ErrBlocked),
		errors.As(err, &refusal), errors.As(err, &first):
		return causeBroker
	}
	return causeDatabase // all that is left comes from there, with the driver's own errors
}
