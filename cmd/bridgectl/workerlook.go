package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// workerStatus is what a verifier says of itself. What it does not say is nil.
type workerStatus struct {
	Address      string   `json:"address"` // without a login
	Error        string   `json:"error,omitempty"`
	Running      *bool    `json:"running"`      // whether it judges messages at present
	Forwarded    *float64 `json:"forwarded"`    // since its start
	Dropped      *float64 `json:"dropped"`      // likewise
	DeadLettered *float64 `json:"dead_letters"` // likewise
	Held         *float64 `json:"held"`
	Waiting      *float64 `json:"waiting"`   // for open transactions
	KeysHeld     *float64 `json:"keys_held"` // order keys of which messages wait for an earlier one

	// Per second since the last look; nil at the first.
	ForwardedRate    *float64 `json:"forwarded_rate"`
	DroppedRate      *float64 `json:"dropped_rate"`
	DeadLetteredRate *float64 `json:"dead_letters_rate"`
}

// A workerSample is a look at a worker's counters.
type workerSample struct {
	at     time.Time
	status workerStatus
}

// metricsAddress is where the metrics of a worker are.
func metricsAddress(worker string) (string, error) {
	parsed, err := url.Parse(worker)
	if err != nil || parsed.Hostname() == "" || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Fragment != "" {
		return "", errors.New("is not of the form http://host:port")
	}
	if parsed.Path == "" || parsed.Path == "/" {
		parsed.Path = "/metrics"
	}
	return parsed.String(), nil
}

const (
	workerPatience = 5 * time.Second
	workerMost     = 16 << 20 // bytes of one answer
)

func (c *collector) askWorker(ctx context.Context, address string) (workerStatus, error) {
	parsed, _ := url.Parse(address) // it was, before
	status := workerStatus{Address: parsed.Scheme + "://" + parsed.Host}
	ctx, cancel := context.WithTimeout(ctx, workerPatience)
	defer cancel()
	families, err := scrape(ctx, address)
	if err != nil {
		status.Error = err.Error()
		return status, fmt.Errorf("ask worker %s: %w", status.Address, err)
	}
	now := time.Now()
	status.read(families)
	if c.seen == nil {
		c.seen = make(map[string]workerSample)
	}
	if last, ok := c.seen[address]; ok {
		seconds := now.Sub(last.at).Seconds()
		status.ForwardedRate = rate(last.status.Forwarded, status.Forwarded, seconds)
		status.DroppedRate = rate(last.status.Dropped, status.Dropped, seconds)
		status.DeadLetteredRate = rate(last.status.DeadLettered, status.DeadLettered, seconds)
	}
	c.seen[address] = workerSample{now, status}
	return status, nil
}

func scrape(ctx context.Context, address string) (map[string]*dto.MetricFamily, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, errors.New("not a usable address")
	}
	request.Close = true // nothing is left over
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		var inner *url.Error
		if errors.As(err, &inner) {
			err = inner.Err // without the address, which may have a password
		}
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers %s", response.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(response.Body, workerMost))
	if err != nil {
		return nil, fmt.Errorf("its metrics cannot be read: %w", err)
	}
	return families, nil
}

// read takes from a verifier's metrics what there is.
func (s *workerStatus) read(families map[string]*dto.MetricFamily) {
	for _, m := range families["twoqueue_messages_total"].GetMetric() {
		n := m.GetCounter().GetValue()
		switch verdict := label(m, "verdict"); verdict {
		case "forwarded":
			s.Forwarded = &n
		case "dropped":
			s.Dropped = &n
		case "dead_lettered":
			s.DeadLettered = &n
		}
	}
	s.Held = gauge(families["twoqueue_messages_held"])
	s.Waiting = gauge(families["twoqueue_messages_waiting"])
	s.KeysHeld = gauge(families["twoqueue_keys_held"])
	if running := gauge(families["twoqueue_session_running"]); running != nil {
		is := *running == 1
		s.Running = &is
	}
}

func label(m *dto.Metric, name string) string {
	for _, pair := range m.GetLabel() {
		if pair.GetName() == name {
			return pair.GetValue()
		}
	}
	return ""
}

func gauge(family *dto.MetricFamily) *float64 {
	if len(family.GetMetric()) == 0 {
		return nil
	}
	value := family.GetMetric()[0].GetGauge().GetValue()
	return &value
}

// rate is a counter's growth per second; one that has sunk belongs to a worker that
// was started again.
func rate(before, after *float64, seconds float64) *float64 {
	if before == nil || after == nil || seconds <= 0 || *after < *before {
		return nil
	}
	r := (*after - *before) / seconds
	return &r
}

// workerName is an address as it is shown.
func workerName(address string) string {
	return strings.TrimPrefix(strings.TrimPrefix(address, "http://"), "https://")
}
