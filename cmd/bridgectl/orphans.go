package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// orphanAge is the verifiers' default of BRIDGE_SWEEP_AGE.
const orphanAge = 7 * 24 * time.Hour

func newOrphansCommand(a *app) *cobra.Command {
	return newGroup("orphans", "List or sweep rows of the ledger whose messages are gone",
		`A row is an orphan if its message is gone from the queues: a queue was purged or deleted,
or the database lost a DELETE in a crash. An orphan looks like the row of a message that is
still on its way; only its age differs. Verifiers remove old rows (BRIDGE_SWEEP_AGE). If the
row of a live message is removed, the message is not lost: it goes to the dead queue.`,
		newOrphansList(a), newOrphansSweep(a))
}

func newOrphansList(a *app) *cobra.Command {
	f := new(orphanFlags)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List old committed rows of the ledger",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ledger, err := f.ledger(cmd.Context(), a, 0)
			if err != nil {
				return err
			}
			found, err := ledger.Orphans(cmd.Context(), f.age, f.limit)
			if err != nil {
				return err
			}
			return a.print(f.list("found", found))
		},
	}
	f.flags(cmd)
	return cmd
}

func newOrphansSweep(a *app) *cobra.Command {
	f := new(orphanFlags)
	var force bool
	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Remove old rows of the ledger, while the queues are empty",
		Long: `Removes the rows that orphans list shows. You need it only if verifiers do not sweep: with
BRIDGE_SWEEP_AGE=never, or if their queues are never empty. The age must exceed the longest
time from a commit to the forwarding, including the longest transaction and the longest
outage, and be at least an hour. The command refuses while messages are ready in the staging
queue, the waiting queue or an ordered queue: a row may belong to one of these messages. It
does not see messages that verifiers hold; status counts them.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ledger, err := f.ledger(cmd.Context(), a, driver.MinSweepAge)
			if err != nil {
				return err
			}
			if !force {
				if err := a.refuseFullQueues(cmd.Context()); err != nil {
					return err
				}
			}
			swept, err := ledger.Sweep(cmd.Context(), f.age, f.limit)
			if err != nil && len(swept) == 0 {
				return err
			}
			return errors.Join(err, a.print(f.list("removed", swept)))
		},
	}
	f.flags(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "sweep also while messages are in the queues; a message whose row is removed goes to the dead queue")
	return cmd
}

// orphanFlags has the flags that choose rows.
type orphanFlags struct {
	age   time.Duration
	limit int
}

func (f *orphanFlags) flags(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.age, "older-than", orphanAge, "rows that are older than this")
	cmd.Flags().IntVar(&f.limit, "limit", defaultLimit, "how many rows at most, the oldest first")
}

// ledger checks the flags and opens the ledger. A ledger that keeps its rows is an error.
func (f *orphanFlags) ledger(ctx context.Context, a *app, least time.Duration) (driver.RecordedRows, error) {
	switch {
	case f.age < least:
		return nil, misused("--older-than: must be at least %v", least)
	case f.limit < 1:
		return nil, misused("--limit: must be positive")
	}
	ledger, err := a.ledger(ctx)
	if err == nil && !ledger.Features().Sweeps {
		err = errors.New("this ledger keeps its rows: it has no orphans")
	}
	return ledger, err
}

func (f *orphanFlags) list(action string, orphans []driver.Orphan) *orphanList {
	list := &orphanList{Action: action, Age: f.age.String(), Rows: []orphanRow{}, Limited: len(orphans) == f.limit}
	for _, o := range orphans {
		list.Rows = append(list.Rows, orphanRow{o.ID.String(), o.RecordedAt})
	}
	return list
}

// refuseFullQueues returns an error if messages are ready in the verifiers' queues.
func (a *app) refuseFullQueues(ctx context.Context) error {
	t := a.topology()
	queues := append(t.OrderedQueues(), t.Queue, t.WaitingQueue())
	depths, err := a.depths(ctx, queues...)
	if err != nil {
		return err
	}
	for _, name := range queues {
		if n := depths[name].Messages; n > 0 {
			return fmt.Errorf("queue %q is not empty: %s ready; sweep later, or with --force", name, count(n, "message"))
		}
	}
	return nil
}

// orphanList is the answer of orphans list and orphans sweep.
type orphanList struct {
	Action  string      `json:"action"`
	Age     string      `json:"older_than"`
	Rows    []orphanRow `json:"orphans"`
	Limited bool        `json:"limited"` // there may be more
}

type orphanRow struct {
	ID         string    `json:"id"`
	RecordedAt time.Time `json:"recorded_at"`
}

func (l *orphanList) write(p *page) {
	p.list([]string{"ID", "RECORDED AT", "AGE"}, rowsOf(l.Rows, func(o orphanRow) []string {
		return []string{o.ID, o.RecordedAt.UTC().Format(time.RFC3339), since(&o.RecordedAt)}
	}))
	p.line("%s older than %s %s%s", count(len(l.Rows), "row"), l.Age, l.Action, moreText(l.Limited))
}
