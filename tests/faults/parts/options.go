package parts

import (
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/verifier"
)

// Unroutable is how long the verifiers wait for a missing target.
const Unroutable = 6 * time.Second

// carryBytes is about half the size of the largest message: with CarrySmall some messages are
// carried and others are not.
const carryBytes = 4 << 10

// senderOptions returns the options of every sender.
func senderOptions(b Brief) *sender.Options {
	o := &sender.Options{Queue: b.Topology.Queue, OrderedShards: b.Topology.OrderedShards, Timeout: 10 * time.Second, Logger: logger()}
	o.Carry, o.CarryBytes = b.Carry, carryBytes
	return o
}

// VerifierOptions returns the options of every verifier, unless its brief changes them. The waits
// are short, so that a run of a minute reaches the end of each.
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
