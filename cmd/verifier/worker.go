package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/endpoints"
	"github.com/twoqueue/twoqueue/cmd/internal/environment"
	"github.com/twoqueue/twoqueue/cmd/internal/transit"
	"github.com/twoqueue/twoqueue/verifier"
	"github.com/twoqueue/twoqueue/verifier/sidejob"
)

// ownConnections are those that the worker uses beside its verifier: for /readyz, the
// counts and the status page.
const ownConnections = 3

// A worker is a verifier with all that is around it.
type worker struct {
	config   config
	log      *slog.Logger
	stopping <-chan struct{}
	started  chan struct{}         // closed once parts are there
	parts    atomic.Pointer[parts] // nil until then
	db       *database.Database    // once it is open
	foreign  foreigners
	unusable atomic.Pointer[error] // why the ledger's database was not usable when it was asked last; nil: not asked yet
}

// parts are what a worker has once database and broker have answered.
type parts struct {
	ledger   *database.Ledger
	verifier *verifier.Verifier
}

// work verifies until ctx ends. What it serves over HTTP is begun before anything else,
// and ended after everything else; no message depends on it (rule 12 of package bridge).
func work(ctx context.Context, c config, stderr io.Writer) error {
	w := &worker{config: c, log: c.Log.Logger(stderr), stopping: ctx.Done(), started: make(chan struct{})}
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	defer func() { // after those who ask the ledger for metrics
		if w.db != nil {
			_ = w.db.Close()
		}
	}()

	traces, err := newTraces(serving, w.log, c.Topology())
	if err != nil {
		return err
	}
	defer traces.close()
	observers := append(traces.observers(), &w.foreign)

	var m *metrics
	if c.HTTP.Addr != environment.None {
		m = newMetrics(w)
		observers = append(observers, m)
		defer w.serve(serving, "endpoints", "BRIDGE_HTTP_ADDR", string(c.HTTP.Addr), func(ctx context.Context, address string) (*endpoints.Server, error) {
			return endpoints.Listen(ctx, address, endpoints.Probes{Ready: w.ready, Notes: w.notes, Registry: m.registry}.Handler(), w.log)
		})()
	}
	defer start(serving, func(ctx context.Context) { w.sample(ctx, m) })()
	if c.Status.Addr != environment.None {
		page := newStatus(w)
		observers = append(observers, page)
		defer w.serve(serving, "status page", "BRIDGE_STATUS_ADDR", string(c.Status.Addr), func(ctx context.Context, address string) (*endpoints.Server, error) {
			return endpoints.Listen(ctx, address, page.handler(w.private), w.log)
		})()
		defer start(serving, page.count)()
	}
	if c.Pprof.Addr != environment.None {
		defer w.serve(serving, "profiles", "BRIDGE_PPROF_ADDR", string(c.Pprof.Addr), func(ctx context.Context, address string) (*endpoints.Server, error) {
			return endpoints.ListenProfiles(ctx, address, w.private, w.log)
		})()
	}
	return w.verify(ctx, join(observers))
}

// private lets a page answer only to those who ask for it by a name that it has.
func (w *worker) private(page http.Handler) http.Handler {
	return endpoints.Private(page, w.config.Status.Hosts, "BRIDGE_STATUS_HOSTS")
}

// serve runs one of the servers, until the function that it returns is called. A taken
// address keeps no message waiting: it is tried again.
func (w *worker) serve(ctx context.Context, what, variable, address string,
	listen func(ctx context.Context, address string) (*endpoints.Server, error)) (stop func()) {
	return start(ctx, func(ctx context.Context) {
		job := sidejob.New(what, w.log)
		job.Run(ctx, func(ctx context.Context) (time.Duration, error) {
			server, err := listen(ctx, address)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", variable, err)
			}
			defer server.Close()
			job.Works() // it serves for as long as it may
			w.log.Info(what, "address", server.Address())
			return 0, server.Wait(ctx)
		})
	})
}

// start runs what ends with ctx, or when the function that it returns is called.
func start(ctx context.Context, run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// verify connects, and verifies until ctx ends.
func (w *worker) verify(ctx context.Context, observer verifier.Observer) error {
	transit.Warn(w.log, prefix, w.config.Database.URL, w.config.AMQP.URL)
	databaseURL, brokerURL := w.config.Secrets()
	db, err := database.OpenAnew(ctx, databaseURL.Reader())
	if err != nil {
		return err
	}
	w.db = db
	db.Limit(w.config.options(w.log).Connections() + ownConnections) // as the documentation promises to who counts them
	ledger, err := db.LedgerOn(ctx, w.config.OwnTable, w.config.OwnTableCanary)
	if err != nil {
		return err
	}
	broker, err := bridge.Dial(ctx, w.config.AMQP.URL, &bridge.BrokerOptions{Name: "verifier", Logger: w.log, URL: brokerURL.Again()})
	if err != nil {
		return err
	}
	defer broker.Close()
	options := w.config.options(slog.New(advising{w.log.Handler()}))
	options.Observer = observer
	if w.config.ExplainAfter > 0 {
		options.Watcher = ledger.Watcher
	}
	v, err := verifier.New(ledger, broker, options)
	if err != nil {
		return err
	}
	w.parts.Store(&parts{ledger, v})
	close(w.started)

	return v.Run(ctx)
}

// checkPatience is how long the database may take to say that it can be used, whoever asks.
const checkPatience = 2 * time.Second

// check asks the ledger's database whether it can be used: while nothing is staged, no session
// notices that it cannot. It may be called once parts are there.
func (w *worker) check(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	err := w.parts.Load().ledger.Check(asking)
	if !errors.Is(ctx.Err(), context.Canceled) { // then nobody has answered
		w.checked(err)
	}
	return err
}

func (w *worker) checked(err error) {
	before := w.unusable.Swap(&err)
	switch failed := before != nil && *before != nil; {
	case err != nil && !failed:
		w.log.Warn("the database does not answer as a ledger; messages may wait", "error", err)
	case err == nil && failed:
		w.log.Info("the database answers again")
	}
}

// lastCheck is what the database said when it was asked last; asked is false before.
func (w *worker) lastCheck() (asked bool, err error) {
	if last := w.unusable.Load(); last != nil {
		return true, *last
	}
	return false, nil
}

// state is what the verifier is doing.
func (w *worker) state() verifier.State {
	if parts := w.parts.Load(); parts != nil {
		return parts.verifier.State()
	}
	return verifier.State{}
}

// stats is what it has done.
func (w *worker) stats() verifier.Stats {
	if parts := w.parts.Load(); parts != nil {
		return parts.verifier.Stats()
	}
	return verifier.Stats{}
}

// observers are told one after the other.
type observers []verifier.Observer

// join returns nil for none, so that a verifier has nobody to tell.
func join(all observers) verifier.Observer {
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all
}

func (all observers) Done(e verifier.Event) {
	for _, o := range all {
		o.Done(e)
	}
}

func (all observers) SessionEnded(err error) {
	for _, o := range all {
		o.SessionEnded(err)
	}
}
