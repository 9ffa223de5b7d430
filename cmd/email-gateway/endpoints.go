package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/probes"
	"github.com/twoqueue/twoqueue/cmd/internal/endpoints"
	"github.com/twoqueue/twoqueue/cmd/internal/environment"
)

// Outcomes that are no statuses.
const (
	duplicate  status = "duplicate"
	handedBack status = "handed_back"
)

type metrics struct {
	registry *prometheus.Registry
	emails   *prometheus.CounterVec
	attempts *prometheus.CounterVec
	duration prometheus.Histogram
	held     prometheus.Gauge
}

func newMetrics(g *gateway) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		emails: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "email_gateway_emails_total",
			Help: "E-mails by outcome."}, []string{"outcome"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "email_gateway_attempts_total",
			Help: "Attempts to send, by the mail server's answer."}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "email_gateway_send_seconds",
			Help: "Time from MAIL to the mail server's last answer.", Buckets: prometheus.ExponentialBuckets(0.005, 3, 11)}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{Name: "email_gateway_held",
			Help: "Messages that are held, including messages that wait."}),
	}
	for _, outcome := range []status{sent, duplicate, doubtful, refused, failed, handedBack} {
		m.emails.WithLabelValues(string(outcome)) // so that the series exist from the start
	}
	m.registry.MustRegister(m.emails, m.attempts, m.duration, m.held, &pendingCollector{end: g.end, statuses: g.statuses},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) outcome(o status)      { m.emails.WithLabelValues(string(o)).Inc() }
func (m *metrics) attempt(result string) { m.attempts.WithLabelValues(result).Inc() }
func (m *metrics) took(d time.Duration)  { m.duration.Observe(d.Seconds()) }
func (m *metrics) hold() (letGo func())  { m.held.Inc(); return m.held.Dec }

// pendingCollector counts the pending messages in the inbox, which all gateways share. It changes
// nothing there. Scrapes have no login, so it counts at most once in countEvery.
type pendingCollector struct {
	end      context.Context
	statuses *statuses

	mu     sync.Mutex
	at     time.Time
	counts map[driver.State]int64
	err    error
}

const (
	// countEvery is how long a count is served again.
	countEvery = 10 * time.Second
	// askPatience is how long a scrape may wait for the database.
	askPatience = 2 * time.Second
)

var pendingDesc = prometheus.NewDesc("email_gateway_pending",
	"Unfinished e-mails of the inbox, by state; doubtful and failed e-mails wait for an operator.", []string{"state"}, nil)

func (p *pendingCollector) Describe(descs chan<- *prometheus.Desc) { descs <- pendingDesc }

func (p *pendingCollector) Collect(values chan<- prometheus.Metric) {
	counts, err := p.get()
	if err != nil {
		values <- prometheus.NewInvalidMetric(pendingDesc, err)
		return
	}
	for _, state := range pendingStates {
		values <- prometheus.MustNewConstMetric(pendingDesc, prometheus.GaugeValue, float64(counts[state]), string(state))
	}
}

func (p *pendingCollector) get() (map[driver.State]int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.at) >= countEvery {
		ctx, cancel := context.WithTimeout(p.end, askPatience)
		defer cancel()
		p.counts, p.err = p.statuses.countPending(ctx)
		p.at = time.Now()
	}
	return p.counts, p.err
}

// ready returns the reason why no e-mail can be sent, or nil.
func (g *gateway) ready(ctx context.Context) error {
	switch {
	case !g.consumer.State().Consuming:
		return errors.New("no consumer")
	case g.sessions.away.Load():
		return errors.New("mail server not available")
	case g.db.PingContext(ctx) != nil:
		return errors.New("database not reachable")
	}
	return nil
}

// serve starts the endpoints. The server is nil if EMAIL_HTTP_ADDR is none.
func (g *gateway) serve(ctx context.Context) (*endpoints.Server, error) {
	if g.config.HTTP.Addr == environment.None {
		return nil, nil
	}
	answers := probes.Probes{Ready: g.ready, Metrics: g.metrics.registry}
	server, err := endpoints.Listen(context.WithoutCancel(ctx), string(g.config.HTTP.Addr), answers.Handler(), g.log)
	if err != nil {
		return nil, err
	}
	g.log.Info("endpoints", "address", server.Address())
	return server, nil
}
