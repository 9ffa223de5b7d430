package verifier

import (
	"log/slog"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// shared has the parts of a verifier that outlive its sessions. Its sessions use them one after the
// other.
type shared struct {
	ledger driver.Ledger
	broker *bridge.Broker
	opts   Options
	allow  allowList
	log    *slog.Logger
	stats  counters
	jobs   sideJobs
	calls  sideCalls

	connections *connections
	forgetter   *forgetter
	toucher     *toucher
}

func newShared(ledger driver.Ledger, broker *bridge.Broker, opts Options) *shared {
	s := &shared{
		ledger: ledger, broker: broker, opts: opts, allow: newAllowList(opts), log: opts.Logger,
		jobs: newSideJobs(opts.Logger), calls: newSideCalls(),
		connections: newConnections(opts.Logger, opts.Settlers), toucher: newToucher(ledger),
	}
	s.forgetter = newForgetter(ledger, opts.Logger, &s.stats.abandoned)
	return s
}
