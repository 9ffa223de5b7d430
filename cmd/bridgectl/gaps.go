package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/versions"
)

func newGapsCommand(a *app) *cobra.Command {
	return newGroup("gaps", "List or skip the versions that entities wait for",
		`A receiver that uses Ordered of package idempotency/versions handles version n of an entity after n-1,
and keeps events that arrive early. An entity has a gap while events of it are kept.

The inbox is in the database of BRIDGE_INBOX_URL (default: BRIDGE_DATABASE_URL).`,
		newGapsList(a), newGapsSkip(a))
}

func newGapsList(a *app) *cobra.Command {
	var consumers []string
	var start int64
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List entities with kept events, the longest wait first",
		Long: `Changes nothing. If MISSING equals FIRST KEPT, the event has arrived: its handling is about to
begin, or fails (see the receiver's log). A missing event may be in a dead queue: replay it from
there, or skip it with gaps skip.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 {
				return misused("--limit: must be positive")
			}
			db, err := a.inbox(cmd.Context())
			if err != nil {
				return err
			}
			if consumers, err = db.consumers(cmd.Context(), consumers, keptTable); err != nil {
				return err
			}
			list := &gapList{Gaps: []gap{}}
			for _, consumer := range consumers {
				ordered, err := db.ordered(consumer, start)
				if err != nil {
					return err
				}
				gaps, err := ordered.Gaps(cmd.Context(), db.DB.DB, limit)
				if err != nil {
					return err
				}
				list.Limited = list.Limited || len(gaps) == limit
				for _, g := range gaps {
					list.Gaps = append(list.Gaps, gap{consumer, g.Entity, g.Missing, g.First, g.Kept, int64(g.Age / time.Second)})
				}
			}
			return a.print(list)
		},
	}
	cmd.Flags().StringArrayVar(&consumers, "consumer", nil, "only this consumer (may be repeated; default: all in the inbox)")
	cmd.Flags().IntVar(&limit, "limit", 100, "how many entities of a consumer at most")
	startFlag(cmd, &start)
	return cmd
}

func startFlag(cmd *cobra.Command, start *int64) {
	cmd.Flags().Int64Var(start, "start", 1, "the version of an entity's first event: the receiver's OrderedOptions.Start")
}

// ordered returns an Ordered that takes no deliveries.
func (d *inboxDatabase) ordered(consumer string, start int64) (*versions.Ordered, error) {
	none := func(amqp.Delivery) (string, int64, error) { return "", 0, errors.New("not a receiver") }
	quiet := versions.Options{HandBack: true, Logger: slog.New(slog.DiscardHandler)} // its errors report everything
	ordered, err := versions.NewOrdered(d.inbox, consumer, none, &versions.OrderedOptions{Options: quiet, Start: &start})
	if err != nil {
		return nil, misused("--consumer, --start: %w", err)
	}
	return ordered, nil
}

// errKept: the skip would give up a kept event. Nothing has changed.
var errKept = errors.New("an event of these versions is kept: move it with --dead-queue NAME, or delete it with --discard")

func newGapsSkip(a *app) *cobra.Command {
	s, c, patience := new(gapSkip), new(agree), new(patienceFlag)
	var start int64
	var discard bool
	cmd := &cobra.Command{
		Use:   "skip ENTITY",
		Short: "Give up versions of an entity, so that it continues with the next version",
		Long: `Gives up all versions of an entity up to and including --through. A version that arrives later is
acked as a duplicate. Kept events of these versions are published to --dead-queue and confirmed
before the skip commits; a crash in between leaves an event in both places. With --discard the
events are deleted. The receiver's Watch, or the entity's next delivery, then handles the events
that are due.

An entity without a row gets one, so a consumer that begins later starts behind these versions.
The command waits for a worker that is handling an event of the entity (--wait).`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s.Entity, s.DryRun = args[0], c.dry
			switch {
			case s.Consumer == "":
				return misused("--consumer: is not given")
			case !cmd.Flags().Changed("through"):
				return misused("--through: is not given; gaps list shows which version is missing")
			case discard && s.DeadQueue != "":
				return misused("--dead-queue, --discard: give one of them")
			}
			if s.queue == "" {
				s.queue = strings.TrimSuffix(s.DeadQueue, ".dead")
			}
			if s.queue == s.DeadQueue && s.queue != "" {
				return misused("--dead-queue: is not QUEUE.dead; give the receiver's queue with --queue")
			}
			if err := c.check("inbox"); err != nil {
				return err
			}
			db, err := a.inbox(cmd.Context())
			if err != nil {
				return err
			}
			ordered, err := db.ordered(s.Consumer, start)
			if err != nil {
				return err
			}
			if c.dry {
				err = patience.within(cmd.Context(), func(ctx context.Context) error { return s.look(ctx, db, start, discard) })
			} else {
				var take versions.EventFunc
				if take, err = s.taker(cmd.Context(), a, discard); err == nil {
					err = patience.within(cmd.Context(), func(ctx context.Context) error {
						return ordered.Skip(ctx, db.DB.DB, s.Entity, s.Through, take)
					})
				}
			}
			switch {
			case errors.Is(err, errKept):
				return errKept
			case err != nil:
				return err
			}
			return a.print(s)
		},
	}
	c.flags(cmd)
	patience.flags(cmd)
	oneConsumer(cmd, &s.Consumer)
	startFlag(cmd, &start)
	cmd.Flags().Int64Var(&s.Through, "through", 0, "the last version to give up")
	cmd.Flags().StringVar(&s.DeadQueue, "dead-queue", "", "the queue for kept events that are given up, as QUEUE.dead")
	cmd.Flags().StringVar(&s.queue, "queue", "", "the receiver's queue, to which dead replay sends these events (default: --dead-queue without .dead)")
	cmd.Flags().BoolVar(&discard, "discard", false, "delete kept events that are given up")
	return cmd
}

// A gapSkip is the answer of gaps skip.
type gapSkip struct {
	DryRun    bool   `json:"dry_run"`
	Consumer  string `json:"consumer"`
	Entity    string `json:"entity"`
	Through   int64  `json:"through"`
	Kept      int    `json:"kept"` // kept events that are given up
	DeadQueue string `json:"dead_queue,omitempty"`
	queue     string
}

// taker returns the function that Skip calls for each kept event: it publishes the event to the
// dead queue, discards it, or refuses the skip.
func (s *gapSkip) taker(ctx context.Context, a *app, discard bool) (versions.EventFunc, error) {
	bury := func(context.Context, amqp.Delivery, error) error { return errKept }
	switch {
	case discard:
		bury = func(context.Context, amqp.Delivery, error) error { return nil }
	case s.DeadQueue != "":
		broker, err := a.broker(ctx)
		if err != nil {
			return nil, err
		}
		bury = idempotency.DeadQueue(broker, s.DeadQueue, s.queue)
	}
	reason := fmt.Errorf("an operator has skipped the versions of entity %q through %d", s.Entity, s.Through)
	return func(ctx context.Context, _ *sql.Tx, event amqp.Delivery) error {
		s.Kept++
		return bury(ctx, event, reason)
	}, nil
}

// look counts the kept events that a skip would give up, or returns the error of that skip.
func (s *gapSkip) look(ctx context.Context, db *inboxDatabase, start int64, discard bool) error {
	err := db.inTx(ctx, func(tx bridge.Tx) error {
		mark, err := db.inbox.LockMark(ctx, tx, s.Consumer, s.Entity)
		if err != nil {
			return err
		}
		last := start - 1
		if mark != "" {
			if last, err = strconv.ParseInt(mark, 10, 64); err != nil {
				return fmt.Errorf("its mark is no version: %w", err)
			}
		}
		if s.Through <= last {
			return versions.ErrNotWaiting
		}
		for {
			version, message, err := db.inbox.FirstKept(ctx, tx, s.Consumer, s.Entity)
			if err != nil {
				return err
			}
			if message == nil || version > s.Through {
				return errRolledBack
			}
			if !discard && s.DeadQueue == "" {
				return errKept
			}
			if err := db.inbox.Unkeep(ctx, tx, s.Consumer, s.Entity, version); err != nil {
				return err
			}
			s.Kept++
		}
	})
	if errors.Is(err, errRolledBack) {
		return nil
	}
	return fmt.Errorf("look at entity %q: %w", s.Entity, err)
}

func (s *gapSkip) write(p *page) {
	would := "continues"
	if s.DryRun {
		would = "would continue"
	}
	p.line("entity %s of %s %s after version %d; %s given up", s.Entity, s.Consumer, would, s.Through, count(s.Kept, "kept event"))
}

// gapList is the answer of gaps list.
type gapList struct {
	Gaps    []gap `json:"gaps"`
	Limited bool  `json:"limited"` // there may be more
}

// A gap is an entity with kept events.
type gap struct {
	Consumer string `json:"consumer"`
	Entity   string `json:"entity"`
	Missing  int64  `json:"missing"`
	First    int64  `json:"first_kept"`
	Kept     int    `json:"kept"`
	Seconds  int64  `json:"seconds"` // since the oldest event was kept
}

func (l *gapList) write(p *page) {
	p.list([]string{"CONSUMER", "ENTITY", "MISSING", "FIRST KEPT", "KEPT", "FOR"}, rowsOf(l.Gaps, func(g gap) []string {
		return []string{g.Consumer, g.Entity, fmt.Sprint(g.Missing), fmt.Sprint(g.First), fmt.Sprint(g.Kept), spanText(time.Duration(g.Seconds) * time.Second)}
	}))
	text := fmt.Sprintf("%d entities wait", len(l.Gaps))
	if len(l.Gaps) == 1 {
		text = "1 entity waits"
	}
	p.line("%s%s", text, moreText(l.Limited))
}
