package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// orphanAge is the verifiers' default of BRIDGE_SWEEP_AGE.
const orphanAge = 7 * 24 * time.Hour

func newOrphansCommand(a *app) *cobra.Command {
	return newGroup("orphans", "Look after rows of the ledger whose messages are gone",
		`A row is an orphan if its message is gone from the queues: somebody purged or deleted
a queue, or a crash of the database took a DELETE back. Nobody can tell such a row from one
whose message is still on its way, so they are told by their age. Verifiers remove them
by themselves (BRIDGE_SWEEP_AGE); a wrong removal loses nothing, but sends the message
to the dead queue.`,
		newOrphansList(a), newOrphansSweep(a))
}

type orphanFlags struct {
	age   time.Duration
	limit int
}

func (f *orphanFlags) flags(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.age, "older-than", orphanAge, "rows that were recorded longer ago than this")
	cmd.Flags().IntVar(&f.limit, "limit", defaultLimit, "how many rows at most, the oldest first")
}

func (f *orphanFlags) check(least time.Duration) error {
	switch {
	case f.age < least:
		return misused("--older-than: must be %v at least", least)
	case f.limit < 1:
		return misused("--limit: must be positive")
	}
	return nil
}

// ledgerThatSweeps is the ledger, which must be one that has orphans.
func (a *app) ledgerThatSweeps(ctx context.Context) (driver.Ledger, error) {
	ledger, err := a.ledger(ctx)
	if err == nil && !ledger.Features().Sweeps {
		err = errors.New("this ledger keeps its rows: it has no orphans")
	}
	return ledger, err
}

func newOrphansList(a *app) *cobra.Command {
	f := new(orphanFlags)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List old committed rows of the ledger",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(0); err != nil {
				return err
			}
			ledger, err := a.ledgerThatSweeps(cmd.Context())
			if err != nil {
				return err
			}
			found, err := ledger.Orphans(cmd.Context(), f.age, f.limit)
			if err != nil {
				return err
			}
			return a.print(newOrphanList("found", f, found, ""))
		},
	}
	f.flags(cmd)
	return cmd
}

func newOrphansSweep(a *app) *cobra.Command {
	f := new(orphanFlags)
	var dry, force bool
	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Remove old rows of the ledger, while the queues are empty",
		Long: `Removes the rows that orphans list shows. The age must be more than the longest time
from a commit to the forwarding, through the longest transaction and the longest outage,
and an hour at least. It refuses while the staging queue, the waiting queue or an ordered
queue holds messages: one of them may be the one that a row belongs to.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(driver.MinSweepAge); err != nil {
				return err
			}
			ledger, err := a.ledgerThatSweeps(cmd.Context())
			if err != nil {
				return err
			}
			if dry {
				found, err := ledger.Orphans(cmd.Context(), f.age, f.limit)
				if err != nil {
					return err
				}
				return a.print(newOrphanList("would be removed", f, found, ""))
			}
			note := ""
			if !force {
				if note, err = a.refuseFullQueues(cmd.Context()); err != nil {
					return err
				}
			}
			swept, err := ledger.Sweep(cmd.Context(), f.age, f.limit)
			if err != nil && len(swept) == 0 {
				return err
			}
			if printErr := a.print(newOrphanList("removed", f, swept, note)); err == nil {
				err = printErr
			}
			return err
		},
	}
	f.flags(cmd)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would be removed")
	cmd.Flags().BoolVar(&force, "force", false, "also while there are messages in the queues: theirs go to the dead queue if their rows are removed")
	return cmd
}

// refuseFullQueues returns an error if messages are on their way. note says what could
// not be seen.
func (a *app) refuseFullQueues(ctx context.Context) (note string, err error) {
	t := a.topology()
	queues := append([]string{t.Queue, t.WaitingQueue()}, t.OrderedQueues()...)
	depths, err := a.depths(ctx, queues...)
	if err != nil {
		return "", err
	}
	management, err := a.management()
	if err != nil {
		return "", err
	}
	for _, name := range queues {
		messages, held := depths[name].Messages, ""
		if management != nil {
			queue, err := management.queue(ctx, name)
			if err != nil {
				return "", about("BRIDGE_MANAGEMENT_URL", err)
			}
			messages, held = messages+int(queue.Unacked), " or held by verifiers"
		} else if depths[name].Consumers > 0 {
			note = "what verifiers hold cannot be seen without BRIDGE_MANAGEMENT_URL"
		}
		if messages > 0 {
			return "", fmt.Errorf("queue %q is not empty: %s ready%s; sweep later, or with --force", name, count(messages, "message"), held)
		}
	}
	return note, nil
}

// depths reads how many messages and consumers queues have. One that does not exist is
// an error.
func (a *app) depths(ctx context.Context, names ...string) (map[string]amqp.Queue, error) {
	broker, err := a.broker(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := broker.Connect(ctx)
	if err != nil {
		return nil, about("BRIDGE_AMQP_URL", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, conn.Close)()
	return readDepths(conn, names...)
}

func readDepths(conn *bridge.Connection, names ...string) (map[string]amqp.Queue, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	defer func() { _ = ch.Close() }()
	depths := make(map[string]amqp.Queue, len(names))
	for _, name := range names {
		queue, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		if err != nil {
			return nil, fmt.Errorf("look at queue %q: %w", name, err)
		}
		depths[name] = queue
	}
	return depths, nil
}

// orphanList is the answer of orphans list and orphans sweep.
type orphanList struct {
	Action  string      `json:"action"`
	Age     string      `json:"older_than"`
	Rows    []orphanRow `json:"orphans"`
	Note    string      `json:"note,omitempty"`
	Limited bool        `json:"limited"` // there may be more
}

type orphanRow struct {
	ID         string    `json:"id"`
	RecordedAt time.Time `json:"recorded_at"`
}

func newOrphanList(action string, f *orphanFlags, orphans []driver.Orphan, note string) *orphanList {
	list := &orphanList{Action: action, Age: f.age.String(), Rows: []orphanRow{}, Note: note, Limited: len(orphans) == f.limit}
	for _, o := range orphans {
		list.Rows = append(list.Rows, orphanRow{o.ID.String(), o.RecordedAt})
	}
	return list
}

func (l *orphanList) write(p *page) {
	if len(l.Rows) > 0 {
		rows := make([][]string, len(l.Rows))
		for i, o := range l.Rows {
			rows[i] = []string{o.ID, o.RecordedAt.UTC().Format(time.RFC3339), since(&o.RecordedAt)}
		}
		p.table([]string{"ID", "RECORDED AT", "AGE"}, rows)
		p.space()
	}
	more := ""
	if l.Limited {
		more = "; there may be more (--limit)"
	}
	p.line("%s older than %s %s%s", count(len(l.Rows), "row"), l.Age, l.Action, more)
	if l.Note != "" {
		p.line("%s", l.Note)
	}
}
