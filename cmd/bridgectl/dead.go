package main

import (
	"context"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"
)

func newDeadCommand(a *app) *cobra.Command {
	dead := newGroup("dead", "List, replay or discard the messages in the dead queue",
		`The dead queue holds the messages that could be neither forwarded nor rightly dropped,
each with the reason and a verdict: committed, or unknown if no verifier could judge it.

The commands take messages from the queue without acking them, and return the messages that
they neither replay nor discard. Until then no other consumer gets them. After a crash of the
command the broker requeues them. On RabbitMQ before 4.3 each look counts as one of a message's
million deliveries, and the order may change.

--queue names another staging queue, or the queue NAME of a receiver, with the dead queue NAME.dead
(idempotency.DeclareReceiver). A receiver's dead messages belong to no ledger and have no verdict;
replay sends them to the queue NAME. cmd/email-gateway is such a receiver.`,
		newDeadList(a), newDeadShow(a), newDeadReplay(a), newDeadDiscard(a))
	dead.PersistentFlags().StringVar(&a.queue, "queue", "", "act on the dead queue NAME.dead: `NAME` is a staging queue or a receiver's queue (default: BRIDGE_QUEUE)")
	return dead
}

func newDeadList(a *app) *cobra.Command {
	f := new(deadFilter)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead messages; removes nothing",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.begin(nil); err != nil {
				return err
			}
			list := &deadList{Messages: []*deadMessage{}, queue: a.topology().DeadQueue()}
			var err error
			list.LookedAt, list.Depth, err = a.eachDead(cmd.Context(), f, func(_ context.Context, _ *peek, batch []*deadMessage) error {
				for _, m := range batch {
					m.lighten()
				}
				list.Messages = append(list.Messages, batch...)
				return nil
			})
			if err != nil {
				return err
			}
			return a.print(list)
		},
	}
	f.flags(cmd)
	return cmd
}

func newDeadShow(a *app) *cobra.Command {
	f := new(deadFilter)
	var most int
	cmd := &cobra.Command{
		Use:   "show ID...",
		Short: "Show dead messages whole; removes nothing",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, ids []string) error {
			if err := f.begin(ids); err != nil {
				return err
			}
			if most < 0 {
				return misused("--body: must not be negative")
			}
			shown := deadDetails{}
			seen, depth, err := a.eachDead(cmd.Context(), f, func(_ context.Context, _ *peek, batch []*deadMessage) error {
				for _, m := range batch {
					shown = append(shown, detail(m, most))
					m.lighten()
				}
				return nil
			})
			switch {
			case err != nil:
				return err
			case len(shown) == 0:
				return notInQueue(a.topology().DeadQueue(), seen, depth)
			}
			return a.print(shown)
		},
	}
	cmd.Flags().IntVar(&f.limit, "limit", defaultLimit, "how many messages are read, from the head of the queue")
	cmd.Flags().IntVar(&most, "body", 4096, "how many bytes of the body to show")
	return cmd
}

func newDeadDiscard(a *app) *cobra.Command {
	f, c := new(deadFilter), new(consent)
	cmd := &cobra.Command{
		Use:   "discard [ID...]",
		Args:  cobra.ArbitraryArgs,
		Short: "Delete dead messages",
		Long: `Deletes the messages that the IDs and the flags select; --all selects all of them. The
receiver of a message with the verdict committed never gets it then. To keep a copy, run
dead show -o json first.`,
		RunE: func(cmd *cobra.Command, ids []string) error {
			if err := f.begin(ids); err != nil {
				return err
			}
			if err := c.check(f, true); err != nil {
				return err
			}
			r := &deadReport{Action: "discard", DryRun: c.dry, Messages: []deadOutcome{}}
			act := func(_ context.Context, p *peek, batch []*deadMessage) error {
				for _, m := range batch {
					outcome := outcomeOf(m)
					if outcome.Done = !c.dry; outcome.Done {
						if err := p.ack(m.delivery.DeliveryTag); err != nil {
							return err
						}
					}
					r.add(outcome)
					m.lighten()
				}
				return p.flush()
			}
			return a.report(cmd.Context(), f, r, act)
		},
	}
	f.flags(cmd)
	c.flags(cmd, f)
	return cmd
}

// consent has the flags by which the user agrees that a command removes messages.
type consent struct{ agree }

func (c *consent) flags(cmd *cobra.Command, f *deadFilter) {
	cmd.Flags().BoolVar(&f.all, "all", false, "all messages that are read")
	c.agree.flags(cmd)
}

// check requires that f chooses messages, and that the user gave --yes or --dry-run. A single
// ID needs neither flag, unless always is set.
func (c *consent) check(f *deadFilter, always bool) error {
	switch {
	case !f.chooses():
		return misused("no message is selected; give IDs or flags such as --reason, or --all")
	case always || len(f.ids) != 1:
		return c.agree.check("queue")
	}
	return nil
}

// eachDead takes at most f.limit messages of the dead queue, and calls act with batches of the
// messages that f chooses. Messages that act does not remove go back to the queue. If ctx ends,
// a running act still finishes.
func (a *app) eachDead(ctx context.Context, f *deadFilter, act func(context.Context, *peek, []*deadMessage) error) (seen, depth int, err error) {
	const mostBytes = 16 << 20 // of a batch, whatever the number of its messages
	working := context.WithoutCancel(ctx)
	p, err := a.peek(working, a.topology().DeadQueue())
	if err != nil {
		return 0, 0, err
	}
	var batch []*deadMessage
	size := 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := act(working, p, batch)
		batch, size = nil, 0
		return err
	}
	seen, err = p.each(f.limit, func(d amqp.Delivery) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		m := readDead(d, a.topology().Queue)
		if !f.takes(m) {
			return nil
		}
		batch, size = append(batch, m), size+m.Size
		if len(batch) < resendWindow && size < mostBytes {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	if err != nil && ctx.Err() == nil {
		p.abandon()
		return seen, p.depth, err
	}
	if closeErr := p.close(); err == nil {
		err = closeErr
	}
	return seen, p.depth, err
}

// report runs act on the messages, and prints r. If an error ends the run early, it prints the
// messages that r has by then.
func (a *app) report(ctx context.Context, f *deadFilter, r *deadReport, act func(context.Context, *peek, []*deadMessage) error) error {
	var err error
	r.LookedAt, r.Depth, err = a.eachDead(ctx, f, act)
	switch {
	case err != nil && len(r.Messages) == 0:
		return err
	case err == nil && len(r.Messages) == 0 && len(f.ids) > 0:
		return notInQueue(a.topology().DeadQueue(), r.LookedAt, r.Depth)
	}
	if printErr := a.print(r); err == nil {
		err = printErr
	}
	if err == nil && !r.DryRun && r.Not > 0 {
		err = fmt.Errorf("%d of %d messages not %sed: still in the dead queue", r.Not, len(r.Messages), strings.TrimSuffix(r.Action, "e"))
	}
	return err
}

func notInQueue(queue string, seen, depth int) error {
	if seen < depth {
		return fmt.Errorf("not found among the first %d of %d messages in queue %q; raise --limit", seen, depth, queue)
	}
	return fmt.Errorf("not found among the %d messages in queue %q", seen, queue)
}

// lighten drops the body and the headers, since a list may be long.
func (m *deadMessage) lighten() {
	m.delivery, m.members = amqp.Delivery{}, nil
}
