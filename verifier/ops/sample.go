package ops

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/verifier/sidejob"
)

const (
	// sampleLimit is the highest count of orphans: for an operator, 1000 and more make no difference.
	sampleLimit = 1000
	// dueLimit bounds the list of due rows, as the smallest statement of all databases does.
	dueLimit = 500
	// delayedLimit is the highest count of delayed messages.
	delayedLimit = 10_000
	// samplePatience bounds one query.
	samplePatience = 10 * time.Second
	// orphansEvery is the number of samples from one count of orphans to the next. A count reads the
	// whole ledger, and orphans increase over days.
	orphansEvery = 10
	// unsweptAge is the age of orphans by default, and when the sweep is off.
	unsweptAge = 7 * 24 * time.Hour
)

// sample periodically asks the database whether it is usable, and for the counts. A scrape does
// not: there may be several Prometheus servers, and the database may be slow.
func (m *Monitor) sample(ctx context.Context) {
	var counted error
	of := m.watched.Load()
	sidejob.New("count", m.logger).Run(ctx, func(ctx context.Context) (time.Duration, error) {
		usable := m.check(ctx, of) == nil // otherwise check has logged it, and the result of the last count stays
		if usable {
			counted = m.metrics.count(ctx, of)
		}
		if (!usable || counted != nil) && ctx.Err() == nil {
			m.metrics.sampleFailed.Inc()
		}
		return m.opts.Interval, counted
	})
}

// count must not run twice at a time.
func (m *metrics) count(ctx context.Context, of *watched) error {
	due, now, err := m.countDue(ctx, of.ledger)
	if err == nil {
		m.sampled.SetToCurrentTime()
		err = m.of.countDelayed(ctx, of, due, now)
	}
	if m.orphansIn > 0 {
		m.orphansIn--
		return err
	}
	if failed := m.countOrphans(ctx, of.ledger); failed != nil {
		return errors.Join(err, failed)
	}
	m.orphansIn = orphansEvery - 1
	return err
}

// countDue returns the first due rows, and the database's time. It reads no message. It also finds
// due rows while no session can begin, for example during an outage of the broker.
func (m *metrics) countDue(ctx context.Context, ledger driver.RecordedRows) ([]driver.DueRow, time.Time, error) {
	if !ledger.Features().Carries {
		return nil, time.Time{}, nil
	}
	type answer struct {
		rows []driver.DueRow
		now  time.Time
	}
	due, err := ask(ctx, m.of.countCalls, samplePatience, func(ctx context.Context) (a answer, err error) {
		a.rows, a.now, err = ledger.Due(ctx, driver.DueRow{}, dueLimit)
		return a, err
	})
	if err != nil {
		return nil, time.Time{}, err
	}
	m.due.Set(float64(len(due.rows)))
	oldest := 0.0
	if len(due.rows) > 0 {
		oldest = seconds(due.rows[0].StageAt, due.now)
	}
	m.oldestDue.Set(oldest)
	return due.rows, due.now, nil
}

// delayed is the last count of messages that wait for their time.
type delayed struct {
	at      time.Time // our time of the count
	waiting int       // up to delayedLimit
	next    time.Time // the first one's time, by the database's clock; zero: none waits
	overdue time.Duration
}

// countDelayed counts the messages that wait for their time, and measures for how long the first
// unpublished row has been due, if it is among the first dueLimit due rows. It reads the index on
// the stage time, no message, and waits for no transaction.
func (m *Monitor) countDelayed(ctx context.Context, of *watched, due []driver.DueRow, now time.Time) error {
	if of.carried == nil || !of.ledger.Features().Carries {
		return nil
	}
	d, err := ask(ctx, m.countCalls, samplePatience, func(ctx context.Context) (d delayed, err error) {
		next, err := of.carried.DelayedRows(ctx, 1)
		if err != nil || len(next) == 0 {
			return d, err
		}
		d.next = next[0].StageAt
		d.waiting, err = of.carried.CountDelayed(ctx, delayedLimit)
		return d, err
	})
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(due, driver.DueRow.Unpublished); i >= 0 {
		d.overdue = now.Sub(due[i].StageAt)
	}
	d.at = time.Now()
	m.delayed.Store(&d)
	return nil
}

func (m *metrics) countOrphans(ctx context.Context, ledger driver.RecordedRows) error {
	if !ledger.Features().Sweeps {
		return nil
	}
	age := m.of.sweepAge
	if age <= 0 {
		age = unsweptAge
	}
	orphans, err := ask(ctx, m.of.countCalls, samplePatience, func(ctx context.Context) ([]driver.Orphan, error) {
		return ledger.Orphans(ctx, age, sampleLimit)
	})
	if err != nil {
		return err
	}
	m.orphans.Set(float64(len(orphans)))
	return nil
}
