package parts

import (
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/verifier"
)

// Unroutable is how long the verifiers wait for a target that is missing.
const Unroutable = 6 * time.Second

// carryBytes is about half of the largest message: with CarrySmall some messages are carried and
// some are not.
const carryBytes = 4 << 10

// senderOptions are those of every sender.
func senderOptions(b Brief) *sender.Options {
	o := &sender.Options{Queue: b.Topology.Queue, OrderedShards: b.Topology.OrderedShards, Timeout: 10 * time.Second, Logger: logger()}
	o.Carry, o.CarryBytes, o.CarryPendingBytes = b.Carry, carryBytes, b.Pending
	return o
}

// VerifierOptions are those of every verifier, unless its brief changes them:
// short waits, so that a run of a minute sees all that ends one.
func VerifierOptions(t bridge.Topology) verifier.Options {
	return verifier.Options{
		Topology:       t,
		Prefetch:       500,
		Settlers:       6,
		SettleWait:     300 * time.Millisecond,
		Patience:       700 * time.Millisecond,
		HandBack:       20 * time.Second,
		Unroutable:     Unroutable,
		ConfirmTimeout: 6 * time.Second,
		Drain:          5 * time.Second,
	}
}
