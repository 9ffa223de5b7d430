package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/probes"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/endpoints"
	"github.com/twoqueue/twoqueue/cmd/internal/environment"
	"github.com/twoqueue/twoqueue/cmd/internal/transit"
	"github.com/twoqueue/twoqueue/verifier"
	"github.com/twoqueue/twoqueue/verifier/ops"
	"github.com/twoqueue/twoqueue/verifier/sidejob"
)

// A worker is a verifier with its database, monitor and endpoints.
type worker struct {
	config  config
	log     *slog.Logger
	monitor *ops.Monitor
	db      *database.Database // nil until it is open
}

// work verifies until ctx ends. Its HTTP servers start first and stop last; no message depends on
// them (rule 12 of package bridge).
func work(ctx context.Context, c config, stderr io.Writer) error {
	w, err := newWorker(c, c.Log.Logger(stderr))
	if err != nil {
		return err
	}
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	defer func() { // after the HTTP servers, whose metrics read the ledger
		if w.db != nil {
			_ = w.db.Close()
		}
	}()

	traces, err := newTraces(serving, w.log, c.Topology())
	if err != nil {
		return err
	}
	defer traces.close()

	if c.HTTP.Addr != environment.None {
		registry := prometheus.NewRegistry()
		registry.MustRegister(w.monitor, collectors.NewBuildInfoCollector(), collectors.NewGoCollector(),
			collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		defer w.serve(serving, "endpoints", "BRIDGE_HTTP_ADDR", string(c.HTTP.Addr), func(ctx context.Context, address string) (*endpoints.Server, error) {
			return endpoints.Listen(ctx, address, w.monitor.Probes(registry), w.log)
		})()
	}
	if c.Status.Addr != environment.None {
		defer w.serve(serving, "status page", "BRIDGE_STATUS_ADDR", string(c.Status.Addr), func(ctx context.Context, address string) (*endpoints.Server, error) {
			return endpoints.Listen(ctx, address, w.monitor.Status(), w.log)
		})()
	}
	if c.Pprof.Addr != environment.None {
		defer w.serve(serving, "profiles", "BRIDGE_PPROF_ADDR", string(c.Pprof.Addr), func(ctx context.Context, address string) (*endpoints.Server, error) {
			return endpoints.ListenProfiles(ctx, address, w.private, w.log)
		})()
	}
	return w.verify(ctx, serving, append(traces.observers(), w.monitor))
}

func newWorker(c config, logger *slog.Logger) (*worker, error) {
	var vhost string
	if uris, err := bridge.ParseURL(c.AMQP.URL); err == nil { // load has refused other URLs
		vhost = uris[0].Vhost
	}
	monitor, err := ops.New(c.options(logger), &ops.Options{VHost: vhost, Interval: c.SampleInterval.Duration(), Hosts: c.Status.Hosts})
	if err != nil {
		return nil, err
	}
	return &worker{config: c, log: logger, monitor: monitor}, nil
}

// private restricts the profiles to the hosts of the status page.
func (w *worker) private(page http.Handler) http.Handler {
	return probes.Private(page, w.config.Status.Hosts, "BRIDGE_STATUS_HOSTS")
}

// serve runs one HTTP server until stop is called. If the address is taken, serve tries again in the
// background, and no message waits for it.
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
			job.Works() // Run returns only at the end, so report success now
			w.log.Info(what, "address", server.Address())
			return 0, server.Wait(ctx)
		})
	})
}

// start calls run in a goroutine. stop ends run's context and waits until run has returned.
func start(ctx context.Context, run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// verify connects, and verifies until ctx ends. The monitor runs until verify returns or serving ends.
func (w *worker) verify(ctx, serving context.Context, observer verifier.Observer) error {
	transit.Warn(w.log, prefix, w.config.Database.URL, w.config.AMQP.URL)
	databaseURL, brokerURL := w.config.Secrets()
	db, err := w.config.Schema.OpenAnew(ctx, databaseURL.Reader())
	if err != nil {
		return err
	}
	w.db = db
	db.Limit(w.config.options(w.log).Connections() + ops.Connections) // the number in the documentation
	ledger, err := db.LedgerOn(ctx, w.config.OwnTable, w.config.OwnTableCanary)
	if err != nil {
		return err
	}
	connecting := &bridge.BrokerOptions{Name: "verifier", Logger: w.log, URL: brokerURL.Again()}
	broker, err := bridge.Dial(ctx, w.config.AMQP.URL, connecting)
	if errors.Is(err, bridge.ErrConnectionLimit) { // v.Run tries again
		broker, err = bridge.NewBroker(w.config.AMQP.URL, connecting)
	}
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
	defer start(serving, func(ctx context.Context) { w.monitor.Run(ctx, v, ledger, ledger.Watcher, ledger.CarriedReader) })()
	return v.Run(ctx)
}
