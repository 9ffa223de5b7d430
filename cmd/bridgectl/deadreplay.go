package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/mend"
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
		Long: `Publishes the messages that the IDs and the flags choose (for all of them say --all)
to their targets, in the form that the receivers expect, and removes each from the dead
queue when the broker has confirmed it and not returned it. A crash in between leaves a
message in both places, with the same ID; none is lost.

A message goes to its target itself, not back into the staging queue: the row of a
committed one has been deleted, so a verifier would drop it.

A message of a receiver goes back to the receiver's queue (--queue NAME), with its attempts
begun anew. All that follows is about a verifier's.

Sent is what is known to be committed: because its row is in the ledger of
BRIDGE_DATABASE_URL now (that row is deleted afterwards), or by the verifier's verdict. The
verdict is a header, which whoever may write to the dead queue can forge: it is believed
only where no ledger can tell, and each message that is sent on its word says so. Of others
nobody knows; --force sends them too, and with them perhaps what was rolled back. What
BRIDGE_ALLOW does not allow, or a verifier has found not allowed while BRIDGE_ALLOW is
not set here, needs --force or --to as well.`,
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
			r := &replayer{planner: p, dry: c.dry, resender: newResender(broker),
				report: &deadReport{Action: "replay", DryRun: c.dry, Messages: []deadOutcome{}}}
			defer r.resender.leave()
			return a.report(cmd.Context(), f, r.report, r.act)
		},
	}
	f.flags(cmd)
	c.flags(cmd, f)
	cmd.Flags().StringVar(&to, "to", "", "send to this EXCHANGE:KEY instead (:NAME for a queue); CC and BCC are left out then")
	cmd.Flags().BoolVar(&p.force, "force", false, "send also what may have been rolled back, is malformed (needs --to), or is for a target that is not allowed")
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
	report   *deadReport
}

// act publishes a batch. Then it removes the messages that are safe from the dead queue, and
// last their rows from the ledger. Rule 4 of package bridge allows this order; a sweep removes a
// row that is left.
func (r *replayer) act(ctx context.Context, p *peek, batch []*deadMessage) error {
	plans, err := r.planner.plan(ctx, batch)
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
	left, err := ledger.Forget(ctx, forget)
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
		return "the broker refuses it: " + mend.Line(refusal.Error())
	case errors.Is(err, bridge.ErrReturned):
		return "no queue is bound to its target; create it, or name another one with --to"
	case errors.Is(err, bridge.ErrNacked):
		return "its target refuses it, as a full queue does"
	case errors.Is(err, bridge.ErrUnconfirmed):
		return "its target did not confirm it in time: it may have arrived"
	}
	return mend.Line(err.Error())
}
