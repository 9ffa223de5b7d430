package main

import (
	"context"
	"errors"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// parkedCount bounds the counting of parked messages.
const parkedCount = 100_000

func newParkedCommand(a *app) *cobra.Command {
	return newGroup("parked", "Look after messages that wait in the database",
		`Senders may store messages in the database instead of staging them: while the broker is
out (ParkOnOutage), or always (ParkAlways). The verifiers stage parked messages by
themselves, within about half a minute after the broker is back.`,
		newParkedList(a))
}

func newParkedList(a *app) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List parked messages of committed transactions",
		Long: `Lists the parked messages of committed transactions, in the order in which the database
sorts their IDs, which is mostly that of their age. To read them it locks them for a moment,
as a verifier does that stages them; it stages none. It leaves out what a verifier has
locked meanwhile.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > parkedCount {
				return misused("--limit: must be 1 to %d", parkedCount)
			}
			ledger, err := a.ledger(cmd.Context())
			switch {
			case err != nil:
				return err
			case !ledger.Features().Parks:
				return errors.New("this ledger keeps no parked messages")
			}
			list := &parkedList{limit: limit}
			if list.Messages, err = lookAtParked(cmd.Context(), ledger, limit); err != nil {
				return err
			}
			if list.Parked, err = ledger.CountParked(cmd.Context(), parkedCount); err != nil {
				return err
			}
			return a.print(list)
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 100, "how many messages are listed")
	return cmd
}

// errOnlyLooking ends an Unpark that shall change nothing.
var errOnlyLooking = errors.New("only looking")

// lookAtParked reads parked messages by beginning to unpark them.
func lookAtParked(ctx context.Context, ledger driver.Ledger, limit int) ([]parkedMessage, error) {
	list := []parkedMessage{}
	var after uuid.UUID
	for len(list) < limit {
		seen := len(list)
		_, err := ledger.Unpark(ctx, after, limit-seen, func(_ context.Context, messages []driver.Parked) error {
			for _, m := range messages {
				list = append(list, readParked(ledger.Identity(), m))
				after = m.ID
			}
			return errOnlyLooking
		})
		if err != nil && !errors.Is(err, errOnlyLooking) {
			return nil, err
		}
		if len(list) == seen {
			break
		}
	}
	return list, nil
}

// A parkedMessage is a message that waits in the database.
type parkedMessage struct {
	ID         uuid.UUID  `json:"id"`
	Exchange   string     `json:"exchange"`
	RoutingKey string     `json:"routing_key"`
	StagedAt   *time.Time `json:"staged_at"` // when its sender tried to stage it
	Size       int        `json:"size"`      // with its properties, in bytes
	Wrong      string     `json:"wrong,omitempty"`
}

func readParked(ledger uuid.UUID, p driver.Parked) parkedMessage {
	out := parkedMessage{ID: p.ID, Size: len(p.Message)}
	staged, err := wire.ReadRecord(ledger, p.Message)
	if err != nil {
		out.Wrong = err.Error()
		return out
	}
	out.Exchange, out.RoutingKey = staged.Exchange, staged.RoutingKey
	if !staged.StagedAt.IsZero() {
		out.StagedAt = &staged.StagedAt
	}
	return out
}

// parkedList is the answer of parked list.
type parkedList struct {
	Parked   int             `json:"parked"` // at most parkedCount
	Messages []parkedMessage `json:"messages"`

	limit int
}

func (l *parkedList) write(p *page) {
	if len(l.Messages) > 0 {
		rows := make([][]string, len(l.Messages))
		for i, m := range l.Messages {
			rows[i] = []string{m.ID.String(), targetText(m.Exchange, m.RoutingKey), since(m.StagedAt), humanize.Bytes(uint64(m.Size)), m.Wrong}
		}
		p.table([]string{"ID", "TARGET", "PARKED FOR", "SIZE", ""}, rows)
		p.space()
	}
	more := ""
	if len(l.Messages) < min(l.Parked, l.limit) {
		more = "; the others are locked: a verifier is staging them, or has just done so"
	}
	p.line("%d of %s shown%s", len(l.Messages), count(l.Parked, "parked message"), more)
}
