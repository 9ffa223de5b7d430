package main

import (
	"context"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

const (
	// sampleLimit is how far is counted: an operator has the same to do about 1000 as
	// about more.
	sampleLimit = 1000
	// samplePatience bounds one question.
	samplePatience = 10 * time.Second
	// orphansEvery is how many samples go by between two questions about orphans, which
	// read the whole ledger and become more over days.
	orphansEvery = 10
	// unsweptAge is the age of orphans where no sweep removes them.
	unsweptAge = 7 * 24 * time.Hour
)

// sample asks the database from time to time what no scrape shall ask it: Prometheus
// may be several, and the database slow.
func (m *metrics) sample(ctx context.Context) {
	ticker := time.NewTicker(m.worker.config.SampleInterval.Duration())
	defer ticker.Stop()
	started := m.worker.started // there is something to ask from then on
	orphansIn := 0
	for {
		if parts := m.worker.parts.Load(); parts != nil {
			err := m.countParked(ctx, parts.ledger)
			if orphansIn--; err == nil && orphansIn < 0 {
				if err = m.countOrphans(ctx, parts.ledger); err == nil {
					orphansIn = orphansEvery - 1
				}
			}
			if err != nil && ctx.Err() == nil {
				m.sampleFailed.Inc()
				m.worker.log.Warn("cannot count parked messages or orphan rows", "error", err)
			}
		}
		select {
		case <-ticker.C:
		case <-started:
			started = nil
		case <-ctx.Done():
			return
		}
	}
}

func (m *metrics) countParked(ctx context.Context, ledger bridge.Ledger) error {
	ctx, cancel := context.WithTimeout(ctx, samplePatience)
	defer cancel()
	if unparker, ok := ledger.(bridge.Unparker); ok {
		n, err := unparker.CountParked(ctx, sampleLimit)
		if err != nil {
			return err
		}
		m.parked.Set(float64(n))
	}
	m.sampled.SetToCurrentTime()
	return nil
}

func (m *metrics) countOrphans(ctx context.Context, ledger bridge.Ledger) error {
	sweeper, ok := ledger.(bridge.Sweeper)
	if !ok {
		return nil
	}
	age := time.Duration(m.worker.config.SweepAge)
	if age < 0 {
		age = unsweptAge
	}
	ctx, cancel := context.WithTimeout(ctx, samplePatience)
	defer cancel()
	orphans, err := sweeper.Orphans(ctx, age, sampleLimit)
	if err != nil {
		return err
	}
	m.orphans.Set(float64(len(orphans)))
	return nil
}
