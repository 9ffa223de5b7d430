package driver

import (
	"context"

	"github.com/twoqueue/twoqueue/bridge"
)

// Provable is the part of a ledger that only proof.Prove uses. Most ledgers are proven themselves,
// and wait in one way.
type Provable interface {
	// Instance names the server on which tx is open.
	Instance(ctx context.Context, tx bridge.Tx) (Instance, error)

	// ProofLedger returns the ledger that proof.Prove proves instead of this one, if the table of this
	// ledger takes no canary. That ledger is in the same database, waits in the same way, and is on
	// a table of the bridge's own. ProofLedger returns nil if this ledger itself is proven. The
	// ProofLedger of a ProofLedger is a further ledger on which proof.Prove proves a rollback: its
	// Record may write canaries that are never committed.
	ProofLedger() Ledger

	// FallBack makes Settle wait in a second way, for good, if the first fails on this server.
	// proof.Prove calls it with the error of the failed proof. It returns false if there is no second
	// way, or if it is in use already.
	FallBack(reason error) bool

	// FellBack returns the reason of the FallBack, or nil if there was none. A verifier logs it.
	FellBack() error
}
