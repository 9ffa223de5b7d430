package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

// pendingStates lists the states of a pending message. States that wait for an operator come first.
var pendingStates = []driver.State{driver.Doubtful, driver.Failed, driver.Ready, driver.Started}

func newPendingCommand(a *app) *cobra.Command {
	return newGroup("pending", "List or decide messages that a receiver has claimed and not finished",
		`A receiver that uses AtMostOnce, or Accept and Work, of package idempotency/pending keeps a row
in its inbox for each unfinished message:

  started   its effect may be under way
  doubtful  the effect may have happened; check the outside system, then run done or retry
  ready     Work or Resume handles it
  failed    given up after all attempts; fix the cause, then run retry or done

The inbox is in the database of BRIDGE_INBOX_URL (default: BRIDGE_DATABASE_URL). Each command
first sets started messages to doubtful when their time is over, as the receiver does.`,
		newPendingList(a), newPendingShow(a), newPendingDecide(a, retryPending), newPendingDecide(a, endPending))
}

func newPendingList(a *app) *cobra.Command {
	f := new(pendingFilter)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the messages that wait for an operator",
		Long: `Lists doubtful and failed messages, or the messages in each --state, without their content, by
consumer, state and key. The last lines count all pending messages.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			db, err := a.inbox(cmd.Context())
			if err != nil {
				return err
			}
			consumers, err := db.consumers(cmd.Context(), f.consumers, pendingTable)
			if err != nil {
				return err
			}
			list := &pendingList{Messages: []pendingMessage{}, Counts: []pendingCount{}}
			for _, consumer := range consumers {
				if err := db.listPending(cmd.Context(), list, consumer, f); err != nil {
					return fmt.Errorf("list pending messages: %w", err)
				}
			}
			return a.print(list)
		},
	}
	f.flags(cmd)
	cmd.Flags().StringArrayVar(&f.consumers, "consumer", nil, "only this consumer (may be repeated; default: all in the inbox)")
	return cmd
}

// A pendingFilter chooses pending messages.
type pendingFilter struct {
	consumers []string
	states    []string
	limit     int
}

func (f *pendingFilter) flags(cmd *cobra.Command) {
	var all []string
	for _, state := range pendingStates {
		all = append(all, string(state))
	}
	cmd.Flags().StringSliceVar(&f.states, "state", []string{string(driver.Doubtful), string(driver.Failed)}, "only messages in these states: "+strings.Join(all, ", "))
	cmd.Flags().IntVar(&f.limit, "limit", defaultLimit, "how many messages at most")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(all, cobra.ShellCompDirectiveNoFileComp))
}

func (f *pendingFilter) check() error {
	if f.limit < 1 {
		return misused("--limit: must be positive")
	}
	for _, state := range f.states {
		if !slices.Contains(pendingStates, driver.State(state)) {
			return misused("--state: %q is not usable; give some of doubtful, failed, ready, started", state)
		}
	}
	return nil
}

// listPending adds the messages of a consumer to a list, until the list has f.limit messages.
func (d *inboxDatabase) listPending(ctx context.Context, list *pendingList, consumer string, f *pendingFilter) error {
	if err := d.doubtOverdue(ctx, consumer); err != nil {
		return err
	}
	var counts map[driver.State]int64
	err := d.inTx(ctx, func(tx bridge.Tx) (err error) {
		counts, err = d.inbox.CountPending(ctx, tx, consumer)
		return err
	})
	if err != nil {
		return err
	}
	for _, state := range pendingStates {
		if counts[state] > 0 {
			list.Counts = append(list.Counts, pendingCount{consumer, string(state), counts[state]})
		}
		if !slices.Contains(f.states, string(state)) {
			continue
		}
		err := d.eachPending(ctx, consumer, state, f.limit-len(list.Messages), func(p driver.Pending) {
			list.Messages = append(list.Messages, newPendingMessage(consumer, p))
		})
		if err != nil {
			return err
		}
	}
	list.Limited = len(list.Messages) >= f.limit
	return nil
}

// doubtOverdue makes started messages whose time is over doubtful, as a receiver does before it
// looks.
func (d *inboxDatabase) doubtOverdue(ctx context.Context, consumer string) error {
	return d.inTx(ctx, func(tx bridge.Tx) error {
		_, err := d.inbox.DoubtOverdue(ctx, tx, consumer)
		return err
	})
}

// eachPending calls do for up to limit pending messages in a state. It does not read their content.
func (d *inboxDatabase) eachPending(ctx context.Context, consumer string, state driver.State, limit int, do func(driver.Pending)) error {
	const page = 100
	for after := ""; limit > 0; {
		var found []driver.Pending
		err := d.inTx(ctx, func(tx bridge.Tx) (err error) {
			found, err = d.inbox.ListPending(ctx, tx, consumer, state, after, min(page, limit))
			return err
		})
		if err != nil {
			return err
		}
		for _, p := range found {
			do(p)
			after = p.Key
		}
		if len(found) < min(page, limit) {
			return nil
		}
		limit -= len(found)
	}
	return nil
}

// lookUp returns whether a key is claimed, and its pending message; nil if none is pending.
func (d *inboxDatabase) lookUp(ctx context.Context, consumer, key string) (claimed bool, p *driver.Pending, err error) {
	err = d.inTx(ctx, func(tx bridge.Tx) (err error) {
		claimed, p, err = d.inbox.LookUp(ctx, tx, consumer, key)
		return err
	})
	return claimed, p, err
}

func newPendingShow(a *app) *cobra.Command {
	var consumers []string
	var most int
	cmd := &cobra.Command{
		Use:   "show KEY...",
		Short: "Show pending messages whole",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, keys []string) error {
			if most < 0 {
				return misused("--body: must not be negative")
			}
			ctx := cmd.Context()
			db, err := a.inbox(ctx)
			if err != nil {
				return err
			}
			if consumers, err = db.consumers(ctx, consumers, pendingTable); err != nil {
				return err
			}
			shown := pendingDetails{}
			for _, consumer := range consumers {
				if err := db.doubtOverdue(ctx, consumer); err != nil {
					return fmt.Errorf("look up pending message: %w", err)
				}
				for _, key := range keys {
					_, p, err := db.lookUp(ctx, consumer, key)
					if err != nil {
						return fmt.Errorf("look up pending message: %w", err)
					}
					if p != nil {
						shown = append(shown, newPendingDetail(consumer, *p, most))
					}
				}
			}
			if len(shown) == 0 {
				return errors.New("no such message is pending; bridgectl message shows whether it is done")
			}
			return a.print(shown)
		},
	}
	cmd.Flags().StringArrayVar(&consumers, "consumer", nil, "only this consumer (may be repeated; default: all in the inbox)")
	cmd.Flags().IntVar(&most, "body", 4096, "how many bytes of the body to show")
	return cmd
}

// A pendingAction is pending retry or pending done.
type pendingAction struct {
	name, short, long string
	always            bool // a single message needs --yes too
	did, note         string
	decide            func(ctx context.Context, db *inboxDatabase, effects *pending.Effects, key string) error
}

var (
	retryPending = pendingAction{
		name: "retry", short: "Try pending messages again",
		long: `Marks a doubtful message as not done, or a failed message for another try. A running Resume or
Work of the receiver then handles it, with all of its attempts. If the effect of a doubtful
message was done after all, it is done twice.`,
		did: "ready", note: "a running Resume or Work handles it",
		decide: func(ctx context.Context, db *inboxDatabase, effects *pending.Effects, key string) error {
			return effects.Retry(ctx, db.DB.DB, key)
		},
	}
	endPending = pendingAction{
		name: "done", short: "Mark pending messages as done", always: true,
		long: `Marks a doubtful message as done, or a failed or ready message as not to be handled any more. The
inbox forgets the message's content; copies of it are duplicates from then on. To keep the
content, run pending show -o json first.`,
		did: "done", note: "its copies are duplicates from now on",
		decide: func(ctx context.Context, db *inboxDatabase, effects *pending.Effects, key string) error {
			return effects.MarkDone(ctx, db.DB.DB, key)
		},
	}
)

func newPendingDecide(a *app, action pendingAction) *cobra.Command {
	f, c, patience := new(pendingFilter), new(agree), new(patienceFlag)
	var consumer string
	var all bool
	cmd := &cobra.Command{
		Use:   action.name + " [KEY...]",
		Args:  cobra.ArbitraryArgs,
		Short: action.short,
		Long: action.long + `

Acts on the messages with these keys, or with --all on all messages in the states of --state.
Without --consumer it searches all consumers for the key, and refuses a key that several have.

If a worker is handling a message, the command waits for the worker's transaction (--wait), and
then prints the message's state. If a worker of Work has taken the message and not yet begun, it
loses the message and does nothing. Either the worker or the decision has an effect, never both.`,
		RunE: func(cmd *cobra.Command, keys []string) error {
			f.consumers = nil
			if consumer != "" {
				f.consumers = []string{consumer}
			}
			switch err := f.check(); {
			case err != nil:
				return err
			case all == (len(keys) > 0):
				return misused("give the keys of messages, or --all for all in the states of --state")
			case all && (consumer == "" || !cmd.Flags().Changed("state")):
				return misused("--all: needs --consumer and --state")
			}
			if action.always || len(keys) != 1 {
				if err := c.check("inbox"); err != nil {
					return err
				}
			}
			db, err := a.inbox(cmd.Context())
			if err != nil {
				return err
			}
			r := &pendingReport{Action: action.name, DryRun: c.dry, Messages: []pendingOutcome{}, did: action.did, note: action.note}
			if all {
				keys, err = db.keysIn(cmd.Context(), consumer, f)
				r.Limited = len(keys) == f.limit
			}
			for _, key := range keys {
				if err != nil {
					break
				}
				var o pendingOutcome
				if o, err = db.decide(cmd.Context(), action, f.consumers, key, c.dry, patience); err == nil {
					r.add(o)
				}
			}
			return r.print(a, err)
		},
	}
	f.flags(cmd)
	c.flags(cmd)
	patience.flags(cmd)
	oneConsumer(cmd, &consumer)
	cmd.Flags().BoolVar(&all, "all", false, "all messages in the states of --state, up to --limit")
	return cmd
}

// keysIn returns the keys that --all chooses.
func (d *inboxDatabase) keysIn(ctx context.Context, consumer string, f *pendingFilter) (keys []string, err error) {
	list := new(pendingList)
	if err := d.listPending(ctx, list, consumer, f); err != nil {
		return nil, fmt.Errorf("list pending messages: %w", err)
	}
	for _, m := range list.Messages {
		keys = append(keys, m.Key)
	}
	return keys, nil
}

// decide carries out a decision about one message, unless dry is set, and returns the result. An
// error ends the command.
func (d *inboxDatabase) decide(ctx context.Context, action pendingAction, consumers []string, key string, dry bool, patience *patienceFlag) (pendingOutcome, error) {
	o := pendingOutcome{Key: key}
	var err error
	if o.Consumer, err = d.consumerOf(ctx, consumers, key); err != nil {
		return o, err
	}
	if o.Consumer == "" {
		o.Why = "no consumer has it pending; bridgectl message shows whether it is done"
		return o, nil
	}
	if err := d.doubtOverdue(ctx, o.Consumer); err != nil {
		return o, err
	}
	if dry {
		o.State, o.Why, err = d.refusal(ctx, o.Consumer, key)
		return o, err
	}
	effects, err := d.effects(o.Consumer)
	if err != nil {
		return o, misused("--consumer: %w", err)
	}
	err = patience.within(ctx, func(ctx context.Context) error { return action.decide(ctx, d, effects, key) })
	switch {
	case err == nil:
		o.Done, o.State = true, action.did
		return o, nil
	case errors.Is(err, pending.ErrNotPending), errors.Is(err, pending.ErrUnderWay):
		if o.State, o.Why, err = d.refusal(ctx, o.Consumer, key); err == nil && o.Why == "" {
			o.Why = "it has just changed to " + o.State + "; check again"
		}
		return o, err
	case ctx.Err() != nil:
		return o, ctx.Err()
	}
	o.Why = failureLine(err)
	return o, nil
}

// consumerOf returns the given consumer, or else the only one that has the key pending; "" if there
// is none.
func (d *inboxDatabase) consumerOf(ctx context.Context, given []string, key string) (string, error) {
	if len(given) > 0 {
		return given[0], nil
	}
	consumers, err := d.consumers(ctx, nil, pendingTable)
	if err != nil {
		return "", err
	}
	var having []string
	for _, consumer := range consumers {
		_, p, err := d.lookUp(ctx, consumer, key)
		if err != nil {
			return "", err
		}
		if p != nil {
			having = append(having, consumer)
		}
	}
	switch len(having) {
	case 0:
		return "", nil
	case 1:
		return having[0], nil
	}
	return "", misused("--consumer: is not given, and several have message %q pending: %s; name one", key, strings.Join(having, ", "))
}

// refusal returns why no decision about a message is possible; "" if one is.
func (d *inboxDatabase) refusal(ctx context.Context, consumer, key string) (state, why string, err error) {
	claimed, p, err := d.lookUp(ctx, consumer, key)
	switch {
	case err != nil:
		return "", "", err
	case p == nil && claimed:
		return stateDone, "it is done", nil
	case p == nil:
		return "", "consumer " + consumer + " has not claimed it", nil
	case p.State == driver.Started:
		return string(p.State), "its effect may be under way since " + spanText(sinceClaim(p)) + "; it becomes doubtful if no result is recorded in time", nil
	}
	return string(p.State), "", nil
}
