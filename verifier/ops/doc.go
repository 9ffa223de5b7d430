// Package ops watches a verifier inside a service: metrics for Prometheus, readiness, and a status page
// for people. The program cmd/verifier serves the same.
//
//	options := &verifier.Options{Allow: allow}
//	monitor, err := ops.New(options, nil)
//	options.Observer = monitor
//	v, err := verifier.New(ledger, broker, options)
//	inspector := postgres.Inspect(ledger)
//	go monitor.Run(ctx, v, ledger, inspector, inspector) // until ctx ends
//	prometheus.MustRegister(monitor)
//	mux.Handle("/verifier/", http.StripPrefix("/verifier", monitor.Probes(nil)))
//	mux.Handle("/verifier/status/", http.StripPrefix("/verifier/status", monitor.Status()))
//
// Probes(nil) serves this monitor's metrics alone; Probes(prometheus.DefaultGatherer) serves all of
// the process, also the metrics of packages sender/metrics and idempotency/metrics.
//
// The README of cmd/verifier lists the metrics, with the values that need attention; compose has
// alerts and a dashboard. A process with several verifiers registers each monitor with a separate
// label (prometheus.WrapRegistererWith). To use another Observer too, such as package otelverifier,
// combine both in verifier.Observers.
//
// # Costs and limits
//
// Every Options.Interval a monitor asks the database whether it is usable, how many carried
// messages are due, and how many delayed messages wait (up to 10,000, by index). Every tenth time
// it also counts the orphan rows, which reads the ledger. A readiness probe asks whether the
// database is usable, once a second at most. An open status page asks for open transactions, every
// two seconds at most. A scrape asks nothing. All of these use at most Connections connections of
// the ledger's pool.
//
// No message waits for a monitor, except the few microseconds in which it is counted. If the
// database does not answer, readiness fails after 3 s at most, even if the driver ignores contexts.
// The verifier goes on in any case.
//
// The counts begin with the process. The page keeps the last twenty dead letters and drops, and the
// rates of the last minute.
package ops
