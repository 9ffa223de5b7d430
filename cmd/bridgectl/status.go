package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
)

const (
	// ledgerRowsMost, for plain and for carried rows, orphansMost and holdersMost bound what is counted and listed.
	ledgerRowsMost = 10_000
	orphansMost    = 1000
	holdersMost    = 20
)

func newStatusCommand(a *app) *cobra.Command {
	var openFor time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what is staged, waiting, dead, carried, open and orphaned",
		Long: `Shows the depths of the queues, the ledger, and the transactions that hold it. Rates, and
what verifiers hold unacked, need BRIDGE_MANAGEMENT_URL. A server that does not answer is
shown as such, and makes the exit code 1.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case openFor < 0:
				return misused("--open-for: must not be negative")
			case a.config.Database.URL == "" && a.config.AMQP.URL == "":
				return misused("nothing is known without a server: set BRIDGE_DATABASE_URL or BRIDGE_AMQP_URL")
			}
			m, err := a.management() // a wrong variable is misuse, and told at once
			if err != nil {
				return err
			}
			facts := a.status(cmd.Context(), m, openFor)
			if err := cmd.Context().Err(); err != nil {
				return err
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
	cmd.Flags().DurationVar(&openFor, "open-for", time.Second, "list transactions that have been open for longer than this")
	return cmd
}

// statusFacts are what is going on at a moment.
type statusFacts struct {
	At       time.Time     `json:"at"`
	Queues   []queueStatus `json:"queues"` // nil: not asked, as is the ledger
	Ledger   *ledgerStatus `json:"ledger"`
	Failures []string      `json:"failures"` // what could not be found out
}

// queueStatus is one of the queues. Held, In and Out are known to the management API
// only: nil without it.
type queueStatus struct {
	Name      string   `json:"name"`
	Role      string   `json:"role"` // staging, waiting, dead, audit or ordered
	Ready     int      `json:"ready"`
	Consumers int      `json:"consumers"`
	Held      *int64   `json:"held"` // by consumers, not acked
	In        *float64 `json:"in"`   // messages per second
	Out       *float64 `json:"out"`  // likewise, delivered
}

type ledgerStatus struct {
	Identity uuid.UUID        `json:"identity"`
	Rows     *int             `json:"rows"`        // committed ones that carry no message, up to ledgerRowsMost, on SQLite older than a second; nil: this ledger does not tell
	Orphans  *int             `json:"orphans"`     // of these, those older than the sweep age, up to orphansMost
	Carried  *int             `json:"carried"`     // committed ones that carry a message, due or not, up to ledgerRowsMost
	Due      *int             `json:"carried_due"` // of these, those whose stage time has come, up to dueMost
	Delayed  *delayedStatus   `json:"delayed"`     // nil: this ledger does not tell
	Open     []inspect.Holder `json:"open"`        // transactions that have recorded and are open, up to holdersMost; nil: this ledger does not tell, or the login may not see them

	unseen bool // the login may not see them
}

// statusPatience bounds the look at all servers.
const statusPatience = 20 * time.Second

// status asks the servers that are named. Transactions that have been open for less than
// openFor are left out.
func (a *app) status(ctx context.Context, m *management, openFor time.Duration) *statusFacts {
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	facts := &statusFacts{At: time.Now().UTC(), Failures: []string{}}
	fail := func(err error) {
		if line := failureLine(err); !slices.Contains(facts.Failures, line) {
			facts.Failures = append(facts.Failures, line)
		}
	}
	if a.config.AMQP.URL != "" {
		var err error
		if facts.Queues, err = a.queueStatus(ctx, m); err != nil {
			fail(err)
		}
	}
	if a.config.Database.URL != "" {
		facts.Ledger = a.ledgerStatus(ctx, openFor, fail)
	}
	return facts
}

// queueStatus returns what it has found out, also with an error.
func (a *app) queueStatus(ctx context.Context, m *management) ([]queueStatus, error) {
	conn, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	// A broker that has stopped to answer would hold a request for ever.
	defer context.AfterFunc(ctx, conn.Close)()
	t := a.topology()
	queues := []queueStatus{
		{Role: "staging", Name: t.Queue}, {Role: "waiting", Name: t.WaitingQueue()},
		{Role: "dead", Name: t.DeadQueue()}, {Role: "audit", Name: t.AuditQueue()},
	}
	for _, name := range t.OrderedQueues() {
		queues = append(queues, queueStatus{Role: "ordered", Name: name})
	}
	var all []queueStatus
	for _, queue := range queues {
		found, err := lookAt(conn, queue.Name)
		if queue.Role == "audit" && (missing(err) || denied(err)) {
			continue
		}
		if err != nil {
			return all, err
		}
		queue.Ready, queue.Consumers = found.Messages, found.Consumers
		all = append(all, queue)
	}
	if m == nil {
		return all, nil
	}
	for i, queue := range all {
		q, err := m.queue(ctx, queue.Name)
		if err != nil {
			return all, about("BRIDGE_MANAGEMENT_URL", err)
		}
		if q.Unacked != nil {
			all[i].Held, all[i].In, all[i].Out = q.Unacked, &q.Stats.Publish.Rate, &q.Stats.Deliver.Rate
		}
	}
	return all, nil
}

// ledgerStatus asks on after a question that was refused; it returns nil if there is no ledger to
// ask.
func (a *app) ledgerStatus(ctx context.Context, openFor time.Duration, fail func(error)) *ledgerStatus {
	ledger, err := a.ledger(ctx)
	if err != nil {
		fail(err)
		return nil
	}
	status, features := &ledgerStatus{Identity: ledger.Identity()}, ledger.Features()
	number := func(of func() (int, error)) *int {
		n, err := of()
		if err != nil {
			fail(err)
			return nil
		}
		return &n
	}
	if features.Sweeps {
		older := func(age time.Duration, most int) *int {
			return number(func() (int, error) {
				rows, err := ledger.Orphans(ctx, age, most)
				return len(rows), err
			})
		}
		status.Rows, status.Orphans = older(0, ledgerRowsMost), older(orphanAge, orphansMost)
	}
	if features.Carries {
		status.Carried = number(func() (int, error) { return ledger.CountCarried(ctx, ledgerRowsMost) })
		status.Due = number(func() (int, error) {
			due, at, err := ledger.Due(ctx, driver.DueRow{}, dueMost)
			if err == nil {
				status.Delayed, err = delayedStatusOf(ctx, ledger, due, at)
			}
			return len(due), err
		})
	}
	if ledger.Watcher != nil {
		open, err := ledger.OpenTransactions(ctx, openFor, holdersMost)
		if err != nil {
			fail(fmt.Errorf("list open transactions: %w", err))
		}
		status.Open, status.unseen = open, open == nil && err == nil
	}
	return status
}
