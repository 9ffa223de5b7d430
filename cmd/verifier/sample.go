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
	// dueLimit bounds the list of due rows, as the smallest statement of all databases does.
	dueLimit = 500
	// samplePatience bounds one question.
	samplePatience = 10 * time.Second
	// orphansEvery is how many samples go by between two questions about orphans, which
	// read the whole ledger and become more over days.
	orphansEvery = 10
	// unsweptAge is the age of orphans where no sweep removes them.
	unsweptAge = 7 * 24 * time.Hour
)

// sample asks the database from time to time whether it is usable and, where there are metrics,
// what no scrape shall ask it: Prometheus may be several, and the database slow.
func (w *worker) sample(ctx context.Context, m *metrics) {
	var counted error
	sidejob.New("count", w.log).Run(ctx, func(ctx context.Context) (time.Duration, error) {
		select {
		case <-w.started: // there is something to ask from then on
		case <-ctx.Done():
			return 0, nil
		}
		usable := w.check(ctx) == nil // the log tells if it is not, and the count then stays as it was
		if usable && m != nil {
			counted = m.count(ctx, w.parts.Load().ledger)
		}
		if m != nil && (!usable || counted != nil) && ctx.Err() == nil {
			m.sampleFailed.Inc()
		}
		return w.config.SampleInterval.Duration(), counted
	})
}

// count is for one caller at a time.
func (m *metrics) count(ctx context.Context, ledger driver.Ledger) error {
	err := m.countDue(ctx, ledger)
	if err == nil {
		m.sampled.SetToCurrentTime()
	}
	if err != nil || m.orphansIn > 0 {
		m.orphansIn--
		return err
	}
	err = m.countOrphans(ctx, ledger)
	if err == nil {
		m.orphansIn = orphansEvery - 1
	}
	return err
}

// countDue reads no message. It sees due rows also while no session can begin, as during an outage
// of the broker.
func (m *metrics) countDue(ctx context.Context, ledger driver.Ledger) error {
	if !ledger.Features().Carries {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, samplePatience)
	defer cancel()
	due, now, err := ledger.Due(ctx, driver.DueRow{}, dueLimit)
	if err != nil {
		return err
	}
	m.due.Set(float64(len(due)))
	oldest := 0.0
	if len(due) > 0 {
		oldest = seconds(due[0].StageAt, now)
	}
	m.oldestDue.Set(oldest)
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
