package ops

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/probes"
	"github.com/twoqueue/twoqueue/verifier"
	"github.com/twoqueue/twoqueue/verifier/sidejob"
)

// Connections is how many database connections a Monitor uses at most, in addition to its
// verifier's ((*verifier.Options).Connections). The pool must allow both.
const Connections = 3

// Options are the options of New. Nil and the zero value mean defaults.
type Options struct {
	// VHost is the virtual host of the verifier's queues, for the label of twoqueue_queue_info.
	// Default "/".
	VHost string
	// Interval is how often Run asks the database whether it is usable and how many carried messages
	// are due, and at every tenth time how many rows are orphans. Default 30 s.
	Interval time.Duration
	// Hosts are the names under which the status page answers, in addition to localhost and loopback
	// addresses: as in a browser's address, without a port. Default: no others.
	Hosts []string
}

// A Monitor watches one verifier. It is the verifier's Observer, a Prometheus collector, and makes
// the HTTP handlers. Any number of goroutines may call its methods.
type Monitor struct {
	opts     Options
	topology bridge.Topology
	sweepAge time.Duration
	logger   *slog.Logger
	watched  atomic.Pointer[watched] // nil until Run
	metrics  *metrics
	status   *status
	foreign  foreignMessages
	delayed  atomic.Pointer[delayed] // nil until counted
	unusable atomic.Pointer[error]   // result of the last check of the ledger's database; nil: not checked yet

	checking singleflight.Group // shares the answer of a check with all callers that wait for it

	// one call of each kind at a time, because a driver may ignore the context of a call
	checkCalls, countCalls, transactionCalls sidejob.Calls
}

var (
	_ verifier.Observer    = (*Monitor)(nil)
	_ prometheus.Collector = (*Monitor)(nil)
)

// watched are the arguments of Run.
type watched struct {
	verifier *verifier.Verifier
	ledger   driver.RecordedRows
	watcher  inspect.Watcher
	carried  inspect.CarriedReader
}

// New returns a monitor of the verifier with these options. Make it the verifier's Observer, then
// call Run. It uses the options' Topology, SweepAge and Logger.
func New(options *verifier.Options, opts *Options) (*Monitor, error) {
	var of verifier.Options
	if options != nil {
		of = *options
	}
	m := &Monitor{topology: of.Topology, sweepAge: of.SweepAge, logger: cmp.Or(of.Logger, slog.Default()),
		checkCalls: sidejob.NewCalls(1), countCalls: sidejob.NewCalls(1), transactionCalls: sidejob.NewCalls(1)}
	if opts != nil {
		m.opts = *opts
	}
	if m.opts.Interval < 0 {
		return nil, errors.New("new monitor: Options.Interval is negative")
	}
	m.opts.Interval = cmp.Or(m.opts.Interval, 30*time.Second)
	m.opts.VHost = cmp.Or(m.opts.VHost, "/")
	m.topology.Queue = cmp.Or(m.topology.Queue, verifier.DefaultQueue)
	m.metrics, m.status = newMetrics(m), newStatus(m)
	return m, nil
}

// Run watches v until ctx ends. ledger is the ledger of v. watcher lists open transactions for the
// status page; nil: the page has none. carried counts delayed messages for the metrics and the
// page; nil: they have no count. An inspector of the ledger is both (package inspect). Before Run
// is called, readiness and page say that the verifier starts.
//
// Run queries the database periodically, and waits for no answer longer than 10 s, even if the
// driver ignores its context. v does not depend on it.
func (m *Monitor) Run(ctx context.Context, v *verifier.Verifier, ledger driver.RecordedRows, watcher inspect.Watcher, carried inspect.CarriedReader) {
	m.watched.Store(&watched{v, ledger, watcher, carried})
	var jobs sync.WaitGroup
	jobs.Go(func() { m.sample(ctx) })
	jobs.Go(func() { m.status.count(ctx) })
	jobs.Wait()
}

// Done implements verifier.Observer.
func (m *Monitor) Done(e verifier.Event) {
	m.foreign.done(e)
	m.metrics.done(e)
	m.status.done(e)
}

// SessionEnded implements verifier.Observer.
func (m *Monitor) SessionEnded(err error) { m.metrics.sessionEnded(err) }

// Describe implements prometheus.Collector.
func (m *Monitor) Describe(descs chan<- *prometheus.Desc) { m.metrics.describe(descs) }

// Collect implements prometheus.Collector. It does not query the database.
func (m *Monitor) Collect(values chan<- prometheus.Metric) { m.metrics.collect(values) }

// Probes returns a handler that answers
//
//	/livez    200 and ok, as long as the process can answer at all
//	/readyz   200, ok and a line about unavailable targets, or 503 and a line for each thing
//	          that is missing: see Ready. The database is asked once a second at most
//	/metrics  for Prometheus, from a Gatherer; nil: only this monitor's
//
// It needs no login. It shows no messages, addresses or logins.
func (m *Monitor) Probes(gatherer prometheus.Gatherer) http.Handler {
	if gatherer == nil {
		registry := prometheus.NewRegistry()
		registry.MustRegister(m)
		gatherer = registry
	}
	return probes.Probes{Ready: m.Ready, Notes: m.notes, Metrics: gatherer}.Handler()
}

// Status returns the handler of the status page and of /status.json. It only reads. Its files have
// relative names, so http.StripPrefix may put it below a path that ends with a slash.
//
// The page needs no login, and shows the statements of open transactions with their values. It
// answers only under localhost, loopback addresses and Options.Hosts, so that no other site can
// read it through a browser. Mount it where only operators can reach it.
func (m *Monitor) Status() http.Handler { return m.status.handler() }

const (
	// checkPatience is how long the database may take to answer a check.
	checkPatience = 2 * time.Second
	// callLimit times the patience is how long a call to the database may use its connection.
	callLimit = 2
)

// ask makes one call to the database. It returns after patience, even if the driver does not.
func ask[T any](ctx context.Context, running sidejob.Calls, patience time.Duration, question func(context.Context) (T, error)) (T, error) {
	return sidejob.InTime(ctx, running, patience, callLimit*patience, question)
}

// check asks the ledger's database whether it is usable: while no message is staged, no session
// notices that it is not.
func (m *Monitor) check(ctx context.Context, of *watched) error {
	answer := m.checking.DoChan("", func() (any, error) { // shared by all callers meanwhile
		_, err := ask(context.WithoutCancel(ctx), m.checkCalls, checkPatience, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, of.ledger.Check(ctx)
		})
		return nil, err
	})
	select {
	case a := <-answer:
		if ctx.Err() == nil { // when a process stops, its pool may be closed
			m.checked(a.Err)
		}
		return a.Err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (m *Monitor) checked(err error) {
	before := m.unusable.Swap(&err)
	switch failed := before != nil && *before != nil; {
	case err != nil && !failed:
		m.logger.Warn("the database does not answer as a ledger; messages may wait", "error", err)
	case err == nil && failed:
		m.logger.Info("the database answers again")
	}
}

// lastCheck returns the result of the last check; asked is false before the first one.
func (m *Monitor) lastCheck() (asked bool, err error) {
	if last := m.unusable.Load(); last != nil {
		return true, *last
	}
	return false, nil
}

// state returns the state of the verifier; zero before Run.
func (m *Monitor) state() verifier.State {
	if of := m.watched.Load(); of != nil {
		return of.verifier.State()
	}
	return verifier.State{}
}

// stats returns the counts of the verifier; zero before Run.
func (m *Monitor) stats() verifier.Stats {
	if of := m.watched.Load(); of != nil {
		return of.verifier.Stats()
	}
	return verifier.Stats{}
}
