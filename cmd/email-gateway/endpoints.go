package main

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/twoqueue/twoqueue/bridge/probes"
	"github.com/twoqueue/twoqueue/cmd/internal/endpoints"
	"github.com/twoqueue/twoqueue/cmd/internal/environment"
	receiver "github.com/twoqueue/twoqueue/idempotency/metrics"
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
	receiver *receiver.Receiver
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
		receiver: receiver.New(consumer, g.effects, g.statuses.inbox),
	}
	for _, outcome := range []status{sent, duplicate, doubtful, refused, failed, handedBack} {
		m.emails.WithLabelValues(string(outcome)) // so that the series exist from the start
	}
	m.registry.MustRegister(m.emails, m.attempts, m.duration, m.held, m.receiver,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) outcome(o status)      { m.emails.WithLabelValues(string(o)).Inc() }
func (m *metrics) attempt(result string) { m.attempts.WithLabelValues(result).Inc() }
func (m *metrics) took(d time.Duration)  { m.duration.Observe(d.Seconds()) }
func (m *metrics) hold() (letGo func())  { m.held.Inc(); return m.held.Dec }

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
