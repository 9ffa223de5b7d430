package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
)

// delayedMost bounds a list or count of delayed messages, and the IDs of one command.
const delayedMost = 10_000

func newDelayedCommand(a *app) *cobra.Command {
	return newGroup("delayed", "List, cancel or release messages that wait for their time",
		`A message with bridge.Message.NotBefore waits in its row of the ledger until the database's clock
has reached that time. Then a verifier stages it.`,
		newDelayedList(a), newDelayedCancel(a), newDelayedNow(a))
}

func newDelayedList(a *app) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the delayed messages whose time has not come, the earliest first",
		Long: `Lists the delayed messages of committed transactions whose time has not come, by the database's
clock, the earliest first. carried list shows the messages whose time has come and that no verifier
has staged. Changes nothing, reads no message, and waits for no transaction.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > delayedMost {
				return misused("--limit: must be 1 to %d", delayedMost)
			}
			ledger, err := a.carryingLedger(cmd.Context())
			if err != nil {
				return err
			}
			list := &delayedList{Messages: []delayedMessage{}, limit: limit}
			if list.At, err = databaseTime(cmd.Context(), ledger); err != nil {
				return err
			}
			rows, err := ledger.DelayedRows(cmd.Context(), limit)
			if err != nil {
				return err
			}
			for _, row := range rows {
				list.Messages = append(list.Messages, delayedMessage{row.ID, row.StageAt, row.Bytes})
			}
			return a.print(list)
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 100, "how many messages are listed")
	return cmd
}

// carryingLedger opens the ledger, or returns an error if its rows cannot carry messages.
func (a *app) carryingLedger(ctx context.Context) (*database.Ledger, error) {
	ledger, err := a.ledger(ctx)
	switch {
	case err != nil:
		return nil, err
	case !ledger.Features().Carries:
		return nil, errors.New("this ledger carries no messages")
	}
	return ledger, nil
}

// databaseTime reads the clock of the ledger's database.
func databaseTime(ctx context.Context, ledger driver.RecordedRows) (time.Time, error) {
	_, at, err := ledger.Due(ctx, driver.DueRow{}, 1)
	return at, err
}

// A delayedMessage is a message that waits for its time.
type delayedMessage struct {
	ID    uuid.UUID `json:"id"`
	Until time.Time `json:"until"` // by the database's clock
	Size  int64     `json:"size"`  // with its properties, in bytes
}

// delayedList is the answer of delayed list.
type delayedList struct {
	At       time.Time        `json:"at"` // by the database's clock
	Messages []delayedMessage `json:"messages"`

	limit int
}

func (l *delayedList) write(p *page) {
	p.list([]string{"ID", "DELAYED UNTIL", "DUE", "SIZE"}, rowsOf(l.Messages, func(m delayedMessage) []string {
		return []string{m.ID.String(), m.Until.Format(time.RFC3339), "in " + spanText(m.Until.Sub(l.At)), humanize.Bytes(uint64(m.Size))}
	}))
	if len(l.Messages) == l.limit {
		p.line("the first %s; there may be more", count(l.limit, "delayed message"))
		return
	}
	p.line("%s", count(len(l.Messages), "delayed message"))
}

func newDelayedCancel(a *app) *cobra.Command {
	var yes bool
	d := &delayedChange{app: a, action: "cancel"}
	d.change = func(ctx context.Context, ledger *database.Ledger, id uuid.UUID) (done bool, err error) {
		tx, err := ledger.DB().BeginTx(ctx, nil)
		if err != nil {
			return false, err
		}
		if done, err = ledger.Cancel(ctx, bridge.SQL(tx), id); err != nil || !done {
			return false, errors.Join(err, tx.Rollback())
		}
		return true, tx.Commit()
	}
	cmd := &cobra.Command{
		Use:   "cancel ID...",
		Args:  cobra.RangeArgs(1, delayedMost),
		Short: "Delete delayed messages before they are sent",
		Long: `Deletes messages, each in its own transaction, as Sender.Cancel does: only while no verifier has
claimed the message. A cancelled message is never delivered. The command also cancels a message
whose time has come, and a message that exists only in its row because the broker was down.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !yes {
				return misused("this deletes messages permanently: confirm with --yes")
			}
			return d.run(cmd.Context(), args)
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "confirm the change")
	d.wait.flags(cmd)
	return cmd
}

func newDelayedNow(a *app) *cobra.Command {
	d := &delayedChange{app: a, action: "now"}
	d.change = func(ctx context.Context, ledger *database.Ledger, id uuid.UUID) (bool, error) {
		return ledger.Advance(ctx, id)
	}
	cmd := &cobra.Command{
		Use:   "now ID...",
		Args:  cobra.RangeArgs(1, delayedMost),
		Short: "Make delayed messages due at once",
		Long: `A verifier stages the messages within a second, or within a minute if another transaction has
locked the row. Until then a message can still be cancelled. The login needs UPDATE on the
ledger's column recorded_at, a right that bridgectl grants operator prints.`,
		RunE: func(cmd *cobra.Command, args []string) error { return d.run(cmd.Context(), args) },
	}
	d.wait.flags(cmd)
	return cmd
}

// A delayedChange changes delayed messages, one after the other.
type delayedChange struct {
	app    *app
	action string
	wait   patienceFlag
	change func(ctx context.Context, ledger *database.Ledger, id uuid.UUID) (done bool, err error)
}

// run changes the messages with these IDs, up to the first error, and prints the result of each.
func (d *delayedChange) run(ctx context.Context, args []string) error {
	var ids []uuid.UUID
	for _, arg := range args {
		id, ok := validID(arg)
		if !ok {
			return misused("%q is not a message ID; give a UUID in canonical text", arg)
		}
		ids = append(ids, id)
	}
	ledger, err := d.app.carryingLedger(ctx)
	if err != nil {
		return err
	}
	report := &delayedReport{Action: d.action, Messages: []delayedOutcome{}}
	for _, id := range ids {
		outcome := delayedOutcome{ID: id}
		err = d.wait.within(ctx, func(ctx context.Context) (err error) {
			if outcome.Done, err = d.change(ctx, ledger, id); err == nil && !outcome.Done {
				outcome.Reason, err = whyUnchanged(ctx, ledger, id)
			}
			return err
		})
		if err != nil {
			break
		}
		report.Messages = append(report.Messages, outcome)
	}
	if len(report.Messages) > 0 || err == nil {
		err = cmp.Or(err, d.app.print(report))
	}
	if err == nil && slices.ContainsFunc(report.Messages, func(o delayedOutcome) bool { return !o.Done }) {
		return &exitError{exitFailed}
	}
	return err
}

// whyUnchanged says why a message was neither cancelled nor made due.
func whyUnchanged(ctx context.Context, ledger *database.Ledger, id uuid.UUID) (string, error) {
	row, err := ledger.CarriedRow(ctx, id)
	switch {
	case err != nil:
		return "", err
	case row == nil:
		return "no committed row carries it, or a transaction has locked the row: it was delivered, cancelled or never sent, or it is not delayed", nil
	case row.Unpublished():
		return "its time has come, and a verifier stages it", nil
	}
	return "its sender or a verifier has published it", nil
}

// A delayedOutcome is the result for one message.
type delayedOutcome struct {
	ID     uuid.UUID `json:"id"`
	Done   bool      `json:"done"`
	Reason string    `json:"reason,omitempty"` // why not
}

// delayedReport is the answer of delayed cancel and delayed now.
type delayedReport struct {
	Action   string           `json:"action"`
	Messages []delayedOutcome `json:"messages"`
}

func (r *delayedReport) write(p *page) {
	done := map[string]string{"cancel": "cancelled", "now": "due now"}[r.Action]
	n := 0
	for _, m := range r.Messages {
		if m.Done {
			n++
			p.line("%s: %s", m.ID, done)
			continue
		}
		p.line("%s: not changed: %s", m.ID, m.Reason)
	}
	p.line("%s", fmt.Sprintf("%s %s", count(n, "message"), done))
}

// A delayedStatus is the part of status about delayed messages.
type delayedStatus struct {
	Waiting int        `json:"waiting"` // messages whose time has not come, up to delayedMost
	Next    *time.Time `json:"next"`    // the time of the first of these; nil if there is none
	Overdue *time.Time `json:"overdue"` // the stage time of the first row that is due and was never published; nil if there is none
	At      time.Time  `json:"at"`      // by the database's clock, as are the others
}

// delayedStatusOf reads the waiting messages. due has the first due rows, at is the database's time.
func delayedStatusOf(ctx context.Context, reader inspect.CarriedReader, due []driver.DueRow, at time.Time) (*delayedStatus, error) {
	status := &delayedStatus{At: at}
	if i := slices.IndexFunc(due, driver.DueRow.Unpublished); i >= 0 {
		status.Overdue = &due[i].StageAt
	}
	next, err := reader.DelayedRows(ctx, 1)
	if err != nil || len(next) == 0 {
		return status, err
	}
	status.Next = &next[0].StageAt
	status.Waiting, err = reader.CountDelayed(ctx, delayedMost)
	return status, err
}

func (s *delayedStatus) text() string {
	text := upTo(&s.Waiting, delayedMost) + " delayed"
	if s.Next != nil {
		text += fmt.Sprintf("; the next one until %s (in %s)", s.Next.Format(time.RFC3339), spanText(s.Next.Sub(s.At)))
	}
	if s.Overdue != nil {
		text += fmt.Sprintf("; due and not yet staged: the first for %s", spanText(s.At.Sub(*s.Overdue)))
	}
	return text
}
