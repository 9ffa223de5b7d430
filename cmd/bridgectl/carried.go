package main

import (
	"context"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
)

// dueMost bounds a list of carried rows. SQL Server's statement takes at most this many rows, fewer
// than the statement of any other database.
const dueMost = 500

func newCarriedCommand(a *app) *cobra.Command {
	return newGroup("carried", "List the messages that ledger rows carry",
		`With sender.Options.Carry a message's ledger row also holds the message. The row stays until
the message has been forwarded. At its stage time the row is due: if the message is in no queue
then, a verifier stages it from the row.`,
		newCarriedList(a))
}

func newCarriedList(a *app) *cobra.Command {
	var limit int
	var all bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the carried messages whose stage time has come, or all of them",
		Long: `Lists the carried messages of committed transactions whose stage time has come, or all carried
messages with --all, the earliest stage time first. In a backlog most of these messages
are in the staging queue and wait for a verifier; after an outage of the broker most are only in
their rows. Changes nothing, reads no message, and waits for no transaction.

PUBLISHED yes means that the sender or a verifier began to publish the message. The broker
may not have it.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > dueMost {
				return misused("--limit: must be 1 to %d", dueMost)
			}
			ledger, err := a.carryingLedger(cmd.Context())
			if err != nil {
				return err
			}
			list := &carriedList{limit: limit, all: all}
			look := lookAtDue
			if all {
				look = lookAtCarried
			}
			if list.Messages, list.At, err = look(cmd.Context(), ledger, limit); err != nil {
				return err
			}
			return a.print(list)
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 100, "how many messages are listed")
	cmd.Flags().BoolVar(&all, "all", false, "also messages whose stage time is in the future")
	return cmd
}

// lookAtDue lists due rows, and returns the database's time.
func lookAtDue(ctx context.Context, ledger *database.Ledger, limit int) ([]carriedMessage, time.Time, error) {
	due, at, err := ledger.Due(ctx, driver.DueRow{}, limit)
	if err != nil {
		return nil, at, err
	}
	list := make([]carriedMessage, len(due))
	for i, row := range due {
		list[i] = carriedBy(inspect.CarriedRow(row))
	}
	return list, at, nil
}

// lookAtCarried lists carried rows, due or not, and returns the database's time.
func lookAtCarried(ctx context.Context, ledger *database.Ledger, limit int) ([]carriedMessage, time.Time, error) {
	at, err := databaseTime(ctx, ledger)
	if err != nil {
		return nil, at, err
	}
	rows, err := ledger.CarriedRows(ctx, limit)
	list := make([]carriedMessage, len(rows))
	for i, row := range rows {
		list[i] = carriedBy(row)
	}
	return list, at, err
}

func carriedBy(row inspect.CarriedRow) carriedMessage {
	return carriedMessage{row.ID, row.RecordedAt, row.StageAt, row.Bytes, !row.Unpublished()}
}

// A carriedMessage is a message that a row of the ledger carries.
type carriedMessage struct {
	ID         uuid.UUID `json:"id"`
	RecordedAt time.Time `json:"recorded_at"` // by the database's clock, as is StageAt
	StageAt    time.Time `json:"stage_at"`
	Size       int64     `json:"size"`      // with its properties, in bytes
	Published  bool      `json:"published"` // its sender or a verifier began to publish it, so a copy may be in the queues
}

// carriedList is the answer of carried list.
type carriedList struct {
	At       time.Time        `json:"at"` // by the database's clock
	Messages []carriedMessage `json:"messages"`

	limit int
	all   bool
}

func (l *carriedList) write(p *page) {
	p.list([]string{"ID", "RECORDED AT", "DUE FOR", "SIZE", "PUBLISHED"}, rowsOf(l.Messages, func(m carriedMessage) []string {
		published := "no"
		if m.Published {
			published = "yes"
		}
		due := short(l.At.Sub(m.StageAt).Truncate(time.Second))
		if left := m.StageAt.Sub(l.At); left > 0 {
			due = "in " + spanText(left)
		}
		return []string{m.ID.String(), m.RecordedAt.Format("2006-01-02 15:04:05"), due, humanize.Bytes(uint64(m.Size)), published}
	}))
	what := " past the stage time"
	if l.all {
		what = ""
	}
	if len(l.Messages) == l.limit {
		p.line("the first %s%s; there may be more", count(l.limit, "carried message"), what)
		return
	}
	p.line("%s%s", count(len(l.Messages), "carried message"), what)
}
