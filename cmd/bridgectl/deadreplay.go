package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/advice"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/verifier"
)

func newDeadReplay(a *app) *cobra.Command {
	f, c := new(deadFilter), new(consent)
	var to string
	p := new(planner)
	cmd := &cobra.Command{
		Use:   "replay [ID...]",
		Args:  cobra.ArbitraryArgs,
		Short: "Send dead messages to their targets, with the same IDs",
		Long: `Publishes the messages that the IDs and the flags select (--all selects all of them) to
their targets, in the form that the receivers expect. Removes each message from the dead
queue when the broker has confirmed the copy and not returned it. A crash in between leaves
a message in both places, with the same ID; no message is lost.

A message goes directly to its target, not back into the staging queue: a verifier would
drop a committed message, whose row has been deleted.

A receiver's message goes back to the receiver's queue (--queue NAME), and its attempts
start again at 1. The rest of this text is about a verifier's messages.

The command sends a message that is known to be committed: its row is in the ledger of
BRIDGE_DATABASE_URL (the row is deleted afterwards), or the verifier's verdict says so. The
verdict is a header. A login that may write to the dead queue can forge it, so it counts
only if no ledger can answer, and the output of each such message says so. The outcome of
other messages is unknown; --force sends them too, and may send a message that was rolled
back. A message that BRIDGE_ALLOW does not allow, or that a verifier did not allow while
BRIDGE_ALLOW is not set here, needs --force or --to as well.`,
		RunE: func(cmd *cobra.Command, ids []string) (err error) {
			if err := f.begin(ids); err != nil {
				return err
			}
			if err := c.check(f, false); err != nil {
				return err
			}
			if to != "" {
				if p.to, err = parseTarget(to); err != nil {
					return misused("--to: %w", err)
				}
			}
			p.ledger = a.ledgerIfNamed
			p.permits = (&verifier.Options{Topology: a.topology(), Allow: a.config.Allow}).Permits()
			p.listed = len(a.config.Allow) > 0
			broker, err := a.broker(cmd.Context())
			if err != nil {
				return err
			}
			r := &replayer{planner: p, dry: c.dry, answered: a.answered, resender: newResender(broker),
				report: &deadReport{Action: "replay", DryRun: c.dry, Messages: []deadOutcome{}}}
			defer r.resender.disconnect()
			return a.report(cmd.Context(), f, r.report, r.act)
		},
	}
	f.flags(cmd)
	c.flags(cmd, f)
	cmd.Flags().StringVar(&to, "to", "", "send to this EXCHANGE:KEY instead (:NAME for a queue); CC and BCC are left out then")
	cmd.Flags().BoolVar(&p.force, "force", false, "also send messages that may have been rolled back, are malformed (with --to), or are for a target that is not allowed")
	return cmd
}

// ledgerIfNamed returns the ledger, or nil if no database is named.
func (a *app) ledgerIfNamed(ctx context.Context) (*database.Ledger, error) {
	if a.config.Database.URL == "" {
		return nil, nil
	}
	return a.ledger(ctx)
}

// A replayer replays batches of dead messages.
type replayer struct {
	planner  *planner
	resender *resender
	dry      bool
	answered func(ctx context.Context, ask func(context.Context) error) error
	report   *deadReport
}

// act publishes a batch. Then it removes the messages that are safe from the dead queue, and
// last their rows from the ledger. Rule 4 of package bridge allows this order; a sweep removes a
// row that is left.
func (r *replayer) act(ctx context.Context, p *peek, batch []*deadMessage) error {
	var plans []replayPlan
	err := r.answered(ctx, func(ctx context.Context) (err error) {
		plans, err = r.planner.plan(ctx, batch)
		return err
	})
	if err != nil {
		return err
	}
	var out []bridge.Outgoing
	if !r.dry {
		for _, plan := range plans {
			out = append(out, plan.out...)
		}
	}
	failures := r.resender.send(ctx, out)
	var forget []uuid.UUID
	for i, m := range batch {
		plan, outcome := plans[i], outcomeOf(m)
		outcome.Why, outcome.Note = plan.refusal, plan.note
		target := r.planner.to
		if target == nil && m.receiver != "" {
			target = &bridge.Target{RoutingKey: m.receiver}
		}
		if target != nil {
			outcome.Exchange, outcome.RoutingKey = target.Exchange, target.RoutingKey
			outcome.target = targetText(target.Exchange, target.RoutingKey)
		}
		if !r.dry && plan.refusal == "" {
			if err := errors.Join(failures[:len(plan.out)]...); err != nil {
				outcome.Why = failureWords(err)
			} else {
				if err := p.ack(m.delivery.DeliveryTag); err != nil {
					return err
				}
				outcome.Done = true
				forget = append(forget, plan.forget...)
			}
			failures = failures[len(plan.out):]
		}
		r.report.add(outcome)
		m.lighten()
	}
	if err := p.flush(); err != nil || len(forget) == 0 {
		return err
	}
	ledger, err := r.planner.ledger(ctx)
	if err != nil {
		return err
	}
	var left []uuid.UUID
	err = r.answered(ctx, func(ctx context.Context) (err error) {
		left, err = ledger.Forget(ctx, forget)
		return err
	})
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("the messages are replayed, but %d of their rows are locked by another transaction and stay; the sweep removes them; the first is %s", len(left), left[0])
	}
	return err
}

// failureWords says why a target has not taken a message.
func failureWords(err error) string {
	refusal := bridge.Refusal(err)
	switch {
	case refusal != nil:
		return "the broker refuses it: " + advice.Line(refusal.Error())
	case errors.Is(err, bridge.ErrReturned):
		return "no queue is bound to its target; create one, or name another target with --to"
	case errors.Is(err, bridge.ErrNacked):
		return "its target refuses it; a queue may be full"
	case errors.Is(err, bridge.ErrUnconfirmed):
		return "its target did not confirm it in time: it may have arrived"
	}
	return advice.Line(err.Error())
}
