package verifier

import (
	"log/slog"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// resources are the parts of a verifier that outlive its sessions.
type resources struct {
	ledger driver.Ledger
	broker *bridge.Broker
	opts   Options
	allow  allowList
	log    *slog.Logger
	stats  counters
	jobs   sideJobs
	calls  sideCalls
	limit  wire.SizeLimit // of the broker, for groups

	connections *dbConnections
	forgetter   *forgetter
	toucher     *toucher
}

func newResources(ledger driver.Ledger, broker *bridge.Broker, opts Options) *resources {
	s := &resources{
		ledger: ledger, broker: broker, opts: opts, allow: newAllowList(opts), log: opts.Logger,
		jobs: newSideJobs(opts.Logger), calls: newSideCalls(),
		connections: newDBConnections(opts.Logger, opts.Settlers), toucher: newToucher(ledger),
	}
	s.forgetter = newForgetter(ledger, opts.Logger, &s.stats.abandoned)
	return s
}
