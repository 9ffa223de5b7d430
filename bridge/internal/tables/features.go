package tables

import (
	"errors"
	"fmt"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// OnLedger is what all ledgers on bridge_ledger have in common.
type OnLedger struct{}

// Features are all.
func (OnLedger) Features() driver.Features {
	return driver.Features{Parks: true, Sweeps: true, TellsHolders: true}
}

// ProofLedger is nil: the ledger itself is proven.
func (OnLedger) ProofLedger() driver.Ledger { return nil }

// FallBack knows no second way to wait.
func (OnLedger) FallBack(error) bool { return false }

// FellBack is nil.
func (OnLedger) FellBack() error { return nil }

// Unsupported is the error of a verb that the features deny.
func Unsupported(doing, what string) error {
	return fmt.Errorf("%s: %s cannot: %w", doing, what, errors.ErrUnsupported)
}
