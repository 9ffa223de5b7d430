package main

import (
	"errors"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/mend"
)

// A cause is what keeps a verifier from working, as metrics and exit codes know it.
type cause string

const (
	causeDatabase cause = "database" // away, or refuses something
	causeSchema   cause = "schema"   // its tables are missing, or another release's
	causeProof    cause = "proof"    // it is not to be trusted: rules 5 and 6 of package bridge, a standby, another ledger or server
	causeBroker   cause = "broker"   // away, or refuses something
	causeQueue    cause = "queue"    // exists with other properties than it must have
)

var causes = []cause{causeDatabase, causeSchema, causeProof, causeBroker, causeQueue}

// causeOf is the cause of a session's end, or of its not beginning.
func causeOf(err error) cause {
	from, _ := mend.Of(err)
	switch {
	case errors.Is(err, bridge.ErrNoSchema):
		return causeSchema
	case errors.Is(err, bridge.ErrProof), errors.Is(err, bridge.ErrOtherInstance), errors.Is(err, bridge.ErrNotPrimary), errors.Is(err, bridge.ErrReadOnly), errors.Is(err, bridge.ErrOtherLedger):
		return causeProof
	case errors.As(err, new(*bridge.QueueMismatch)):
		return causeQueue
	case from == mend.Broker:
		return causeBroker
	}
	return causeDatabase // all that is left comes from there, with the driver's own errors
}
