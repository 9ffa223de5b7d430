package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
)

const (
	// ledgerRowsMost bounds the counts of plain rows and of carried rows, orphansMost the count of
	// orphans, and holdersMost the list of open transactions.
	ledgerRowsMost = 10_000
	orphansMost    = 1000
	holdersMost    = 20
)

func newStatusCommand(a *app) *cobra.Command {
	var openFor time.Duration
	cmd := &cobra.Command{
		Use:         "status",
		Annotations: map[string]string{piecemeal: "true"},
		Short:       "Show staged, waiting, dead, carried and orphaned messages, and open transactions",
		Long: `Shows the depths of the queues, the ledger, and the transactions that hold it. Rates and the
number of messages that verifiers hold unacked need BRIDGE_MANAGEMENT_URL. If a server does
not answer, the output says so, and the exit code is 1.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case openFor < 0:
				return misused("--open-for: must not be negative")
			case a.config.Database.URL == "" && a.config.AMQP.URL == "":
				return misused("no server is named: set BRIDGE_DATABASE_URL or BRIDGE_AMQP_URL")
			}
			m, err := a.management() // a wrong variable is misuse, and reported at once
			if err != nil {
				return err
			}
			facts := a.status(cmd.Context(), m, openFor)
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			return cmp.Or(a.print(facts), facts.Failures.exit())
		},
	}
	cmd.Flags().DurationVar(&openFor, "open-for", time.Second, "list transactions that have been open for longer than this")
	return cmd
}

// statusFacts is the state of the queues and the ledger at a moment.
type statusFacts struct {
	At       time.Time     `json:"at"`
	Queues   []queueStatus `json:"queues"` // nil, as for Ledger: not asked, or no answer
	Ledger   *ledgerStatus `json:"ledger"`
	Failures failures      `json:"failures"`
}

// queueStatus is the state of one queue. Only the management API has Held, In and Out; they are nil
// without it.
type queueStatus struct {
	Name      string   `json:"name"`
	Role      string   `json:"role"` // staging, waiting, dead, audit or ordered
	Ready     int      `json:"ready"`
	Consumers int      `json:"consumers"`
	Held      *int64   `json:"held"` // unacked, with consumers
	In        *float64 `json:"in"`   // messages per second
	Out       *float64 `json:"out"`  // likewise, delivered
}

type ledgerStatus struct {
	Identity uuid.UUID        `json:"identity"`
	Rows     *int             `json:"rows"`        // committed rows that carry no message, up to ledgerRowsMost, on SQLite older than a second; nil: not known
	Orphans  *int             `json:"orphans"`     // the rows among these that are older than orphanAge, up to orphansMost
	Carried  *int             `json:"carried"`     // committed rows that carry a message, due or not, up to ledgerRowsMost
	Due      *int             `json:"carried_due"` // the rows among these whose stage time has come, up to dueMost
	Delayed  *delayedStatus   `json:"delayed"`     // nil: not known
	Open     []inspect.Holder `json:"open"`        // open transactions that have recorded, up to holdersMost; nil: not known, or the login may not see them

	unseen bool // the login may not see open transactions
}

// statusPatience bounds the questions to the broker, and then those to the database.
const statusPatience = 20 * time.Second

// status asks the servers that are named. It leaves out transactions that have been open for less
// than openFor.
func (a *app) status(ctx context.Context, m *management, openFor time.Duration) *statusFacts {
	facts := &statusFacts{At: time.Now().UTC(), Failures: failures{}}
	if a.config.AMQP.URL != "" {
		var err error
		if facts.Queues, err = a.queueStatus(ctx, m); err != nil {
			facts.Failures.add(err)
		}
	}
	if a.config.Database.URL != "" {
		ctx, cancel := context.WithTimeout(ctx, statusPatience)
		defer cancel()
		_ = a.answered(ctx, func(ctx context.Context) error {
			facts.Ledger = a.ledgerStatus(ctx, openFor, func(err error) { facts.Failures.add(reasonOf(ctx, err)) })
			return nil
		})
	}
	return facts
}

// queueStatus returns the queues that it has read, also with an error.
func (a *app) queueStatus(ctx context.Context, m *management) (all []queueStatus, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, statusPatience, fmt.Errorf("%w: no answer from the broker within %v", bridge.ErrUnavailable, statusPatience))
	defer cancel()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("ask for the queues: %w", context.Cause(ctx))
		}
	}()
	conn, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, conn.Close)()
	t := a.topology()
	queues := []queueStatus{
		{Role: "staging", Name: t.Queue}, {Role: "waiting", Name: t.WaitingQueue()},
		{Role: "dead", Name: t.DeadQueue()}, {Role: "audit", Name: t.AuditQueue()},
	}
	for _, name := range t.OrderedQueues() {
		queues = append(queues, queueStatus{Role: "ordered", Name: name})
	}
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

// ledgerStatus asks the ledger all questions, even after one has failed. It returns nil if the
// ledger cannot be opened.
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
