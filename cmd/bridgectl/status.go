package main

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/cmd/internal/mend"
)

const (
	// ledgerRowsMost, orphansMost and holdersMost bound what is counted and listed.
	ledgerRowsMost = 10_000
	orphansMost    = 1000
	holdersMost    = 20
)

func newStatusCommand(a *app) *cobra.Command {
	c := &collector{app: a}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show once what is staged, waiting, dead, parked, open and orphaned",
		Long: `Shows the depths of the queues, the ledger, the transactions that hold it, and what the
workers say that --worker names. Rates, and what verifiers hold unacked, need
BRIDGE_MANAGEMENT_URL. A server that does not answer is shown as such, and makes the exit
code 1.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.check(); err != nil {
				return err
			}
			defer c.close()
			facts := c.collect(cmd.Context())
			if cmd.Context().Err() != nil {
				return cmd.Context().Err()
			}
			if err := a.print(facts); err != nil {
				return err
			}
			if len(facts.Failures) > 0 {
				return &exitError{exitFailed}
			}
			return nil
		},
	}
	c.flags(cmd)
	return cmd
}

// statusFacts are what is going on at a moment.
type statusFacts struct {
	At       time.Time      `json:"at"`
	Queues   []queueStatus  `json:"queues"` // nil: not asked, as is the ledger
	Ledger   *ledgerStatus  `json:"ledger"`
	Workers  []workerStatus `json:"workers"`
	Failures []string       `json:"failures"` // what could not be found out
}

// queueStatus is one of the queues. Held, In and Out are known to the management API
// only: nil without it.
type queueStatus struct {
	Name      string   `json:"name"`
	Role      string   `json:"role"` // staging, waiting, dead or audit
	Ready     int      `json:"ready"`
	Consumers int      `json:"consumers"`
	Held      *int64   `json:"held"`   // by consumers, not acked
	In        *float64 `json:"in"`     // messages per second
	Out       *float64 `json:"out"`    // likewise, delivered
	Change    *float64 `json:"change"` // of Ready per second, since the last look; nil at the first
}

type ledgerStatus struct {
	Identity uuid.UUID        `json:"identity"`
	Rows     *int             `json:"rows"`    // committed ones that are not parked, up to ledgerRowsMost, on SQLite older than a second; nil: this ledger does not tell
	Orphans  *int             `json:"orphans"` // of these, those older than the sweep age, up to orphansMost
	Parked   *int             `json:"parked"`  // up to parkedCount
	Open     []inspect.Holder `json:"open"`    // transactions that have recorded and are open, up to holdersMost; nil: this ledger does not tell
}

// A collector finds out what is going on, once or again and again.
type collector struct {
	app       *app
	orphanAge time.Duration
	openFor   time.Duration
	workers   []string

	conn *bridge.Connection
	last *statusFacts
	seen map[string]workerSample
}

func (c *collector) flags(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&c.orphanAge, "orphans-older-than", orphanAge, "the age from which on a row counts as an orphan")
	cmd.Flags().DurationVar(&c.openFor, "open-for", time.Second, "list transactions that have been open for longer than this")
	cmd.Flags().StringSliceVar(&c.workers, "worker", nil, "the address of a verifier's endpoints, http://host:port, to show what it says of itself")
}

func (c *collector) check() error {
	switch {
	case c.orphanAge < 0 || c.openFor < 0:
		return misused("--orphans-older-than, --open-for: must not be negative")
	case c.app.config.Database.URL == "" && c.app.config.AMQP.URL == "" && len(c.workers) == 0:
		return misused("nothing is known without a server: set BRIDGE_DATABASE_URL or BRIDGE_AMQP_URL, or give --worker")
	}
	for i, worker := range c.workers {
		address, err := metricsAddress(worker)
		if err != nil {
			return misused("--worker: %w", err)
		}
		c.workers[i] = address
	}
	_, err := c.app.management() // a wrong variable is misuse, and told at once
	return err
}

func (c *collector) close() {
	if c.conn != nil {
		c.conn.Close()
	}
}

// collectPatience bounds one look at all servers.
const collectPatience = 20 * time.Second

func (c *collector) collect(ctx context.Context) *statusFacts {
	ctx, cancel := context.WithTimeout(ctx, collectPatience)
	defer cancel()
	facts := &statusFacts{At: time.Now().UTC(), Failures: []string{}}
	fail := func(err error) {
		if err != nil {
			facts.Failures = append(facts.Failures, mend.Line(explain(err).Error()))
		}
	}
	if c.app.config.AMQP.URL != "" {
		fail(c.askBroker(ctx, facts))
	}
	if c.app.config.Database.URL != "" {
		fail(c.askLedger(ctx, facts))
	}
	for _, worker := range c.workers {
		status, err := c.askWorker(ctx, worker)
		fail(err)
		facts.Workers = append(facts.Workers, status)
	}
	c.last = facts
	return facts
}

func (c *collector) askBroker(ctx context.Context, facts *statusFacts) error {
	if c.conn == nil || c.conn.Err() != nil {
		broker, err := c.app.broker(ctx)
		if err != nil {
			return err
		}
		if c.conn, err = broker.Connect(ctx); err != nil {
			c.conn = nil
			return about("BRIDGE_AMQP_URL", err)
		}
	}
	// A broker that has stopped to answer would hold a request for ever.
	defer context.AfterFunc(ctx, c.conn.Close)()
	t := c.app.topology()
	queues := []struct{ role, name string }{
		{"staging", t.Queue}, {"waiting", t.WaitingQueue()}, {"dead", t.DeadQueue()}, {"audit", t.AuditQueue()},
	}
	for _, name := range t.OrderedQueues() {
		queues = append(queues, struct{ role, name string }{"ordered", name})
	}
	for _, queue := range queues {
		found, err := readDepths(c.conn, queue.name)
		if queue.role == "audit" && (missing(err) || denied(err)) {
			continue
		}
		if err != nil {
			return err
		}
		status := queueStatus{Name: queue.name, Role: queue.role, Ready: found[queue.name].Messages, Consumers: found[queue.name].Consumers}
		c.change(&status, facts.At)
		facts.Queues = append(facts.Queues, status)
	}
	return c.askManagement(ctx, facts)
}

// change is what has become of the depth since the last look.
func (c *collector) change(status *queueStatus, now time.Time) {
	if c.last == nil {
		return
	}
	for _, q := range c.last.Queues {
		if seconds := now.Sub(c.last.At).Seconds(); q.Name == status.Name && seconds > 0 {
			rate := float64(status.Ready-q.Ready) / seconds
			status.Change = &rate
		}
	}
}

func (c *collector) askManagement(ctx context.Context, facts *statusFacts) error {
	m, err := c.app.management()
	if m == nil || err != nil {
		return err
	}
	for i := range facts.Queues {
		status := &facts.Queues[i]
		q, err := m.queue(ctx, status.Name)
		if err != nil {
			return about("BRIDGE_MANAGEMENT_URL", err)
		}
		status.Held, status.In, status.Out = &q.Unacked, &q.Stats.Publish.Rate, &q.Stats.Deliver.Rate
	}
	return nil
}

func (c *collector) askLedger(ctx context.Context, facts *statusFacts) error {
	ledger, err := c.app.ledger(ctx)
	if err != nil {
		return err
	}
	status := &ledgerStatus{Identity: ledger.Identity()}
	features := ledger.Features()
	if features.Sweeps {
		rows, err := ledger.Orphans(ctx, 0, ledgerRowsMost)
		if err != nil {
			return err
		}
		old, err := ledger.Orphans(ctx, c.orphanAge, orphansMost)
		if err != nil {
			return err
		}
		n, orphans := len(rows), len(old)
		status.Rows, status.Orphans = &n, &orphans
	}
	if features.Parks {
		n, err := ledger.CountParked(ctx, parkedCount)
		if err != nil {
			return err
		}
		status.Parked = &n
	}
	if ledger.Watcher != nil {
		if status.Open, err = ledger.OpenTransactions(ctx, c.openFor, holdersMost); err != nil {
			return fmt.Errorf("list open transactions: %w", err)
		}
		if status.Open == nil {
			status.Open = []inspect.Holder{}
		}
	}
	facts.Ledger = status
	return nil
}

// denied tells whether err says that the login has no right.
func denied(err error) bool { return refusedWith(err, amqp.AccessRefused) }
