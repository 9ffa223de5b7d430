package main

import (
	"context"
	"time"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/verifier/sidejob"
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

// sample asks the database from time to time whether it is usable, and what no scrape shall ask
// it: Prometheus may be several, and the database slow.
func (m *metrics) sample(ctx context.Context) {
	orphansIn := 0
	sidejob.New("count", m.worker.log).Run(ctx, func(ctx context.Context) (time.Duration, error) {
		select {
		case <-m.worker.started: // there is something to ask from then on
		case <-ctx.Done():
			return 0, nil
		}
		ledger := m.worker.parts.Load().ledger
		err := m.check(ctx)
		if err == nil {
			err = m.countParked(ctx, ledger)
		}
		if orphansIn--; err == nil && orphansIn < 0 {
			if err = m.countOrphans(ctx, ledger); err == nil {
				orphansIn = orphansEvery - 1
			}
		}
		if err != nil && ctx.Err() == nil {
			m.sampleFailed.Inc()
		}
		return m.worker.config.SampleInterval.Duration(), err
	})
}

func (m *metrics) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, samplePatience)
	defer cancel()
	return m.worker.check(ctx)
}

func (m *metrics) countParked(ctx context.Context, ledger driver.Ledger) error {
	ctx, cancel := context.WithTimeout(ctx, samplePatience)
	defer cancel()
	if ledger.Features().Parks {
		n, err := ledger.CountParked(ctx, sampleLimit)
		if err != nil {
			return err
		}
		m.parked.Set(float64(n))
	}
	m.sampled.SetToCurrentTime()
	return nil
}

func (m *metrics) countOrphans(ctx context.Context, ledger driver.Ledger) error {
	if !ledger.Features().Sweeps {
		return nil
	}
	age := time.Duration(m.worker.config.SweepAge)
	if age < 0 {
		age = unsweptAge
	}
	ctx, cancel := context.WithTimeout(ctx, samplePatience)
	defer cancel()
	orphans, err := ledger.Orphans(ctx, age, sampleLimit)
	if err != nil {
		return err
	}
	m.orphans.Set(float64(len(orphans)))
	return nil
}
