package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
)

func newMessageCommand(a *app) *cobra.Command {
	l := &messageLook{app: a}
	cmd := &cobra.Command{
		Use:         "message ID",
		Annotations: map[string]string{piecemeal: "true"},
		Short:       "Show all known facts about one message",
		Long: `Asks the ledger, the dead queue, the audit queue and the inbox, if variables name their
servers. Explains the answers and the next step. Changes nothing. Messages in the staging queue,
the waiting queue and the ordered queues are only counted: reading them would take them from the
verifiers for a moment. The number of messages that verifiers hold unacked needs
BRIDGE_MANAGEMENT_URL. If a server does not answer, the output says so, and the exit code is 1.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, ok := validID(args[0])
			switch {
			case !ok:
				return misused("%q is not a message ID; give a UUID in canonical text", args[0])
			case l.limit < 1:
				return misused("--limit: must be positive")
			case a.config.Database.URL == "" && a.config.AMQP.URL == "" && a.config.Inbox.URL == "":
				return misused("no server is named: set BRIDGE_DATABASE_URL, BRIDGE_AMQP_URL or BRIDGE_INBOX_URL")
			}
			m, err := a.management()
			if err != nil {
				return err
			}
			facts := l.look(cmd.Context(), m, id)
			if facts.isMissing() { // or a verifier forwarded it between two questions, or the API's numbers are old
				select {
				case <-time.After(lostPause):
				case <-cmd.Context().Done():
				}
				facts = l.look(cmd.Context(), m, id)
			}
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			facts.conclude()
			return cmp.Or(a.print(facts), facts.Failures.exit())
		},
	}
	cmd.Flags().IntVar(&l.limit, "limit", defaultLimit, "how many messages of the dead queue and of the audit queue are read")
	cmd.Flags().StringSliceVar(&l.consumers, "consumer", nil, "the inbox's consumers to ask about (default: all)")
	return cmd
}

// The states of a message's row in the ledger.
const (
	rowCommitted = "committed"
	rowOpen      = "open"
	rowAbsent    = "absent"
)

// messageFacts has the facts about one message.
type messageFacts struct {
	ID        uuid.UUID      `json:"id"`
	CreatedAt *time.Time     `json:"created_at"` // from the ID, if it is a UUIDv7
	Ledger    *rowFacts      `json:"ledger"`     // nil, here and below: not asked, or no answer
	Dead      *deadFacts     `json:"dead"`
	Dropped   *droppedFacts  `json:"dropped"` // copies in the audit queue; also nil if that does not exist
	Inbox     []inboxClaim   `json:"inbox"`
	Queues    map[string]int `json:"queues"` // ready messages
	Held      *int64         `json:"held"`   // by verifiers, unacked; nil: not known
	Meaning   []string       `json:"meaning"`
	Next      string         `json:"next"`
	Failures  failures       `json:"failures"`

	asked map[string]bool // whether a server is named, by its variable

	ready int // messages in the verifiers' queues
}

type rowFacts struct {
	Identity   uuid.UUID        `json:"identity"`
	State      string           `json:"state"`
	RecordedAt *time.Time       `json:"recorded_at"` // of a committed row; nil if not known, or if the message is delayed, since recorded_at has its stage time then
	Carried    *carriedMessage  `json:"carried"`     // nil: the row carries no message
	Delayed    *time.Time       `json:"delayed"`     // the time until which the message is delayed, by the database's clock; nil: it is not delayed
	Holders    []inspect.Holder `json:"holders"`     // of an open transaction; only the sessions that the login may see

	sweptBefore time.Time // the watermark of sweeps, if the row is absent
}

type deadFacts struct {
	Found    []*deadMessage `json:"found"`
	LookedAt int            `json:"looked_at"`
	Depth    int            `json:"depth"`
}

type droppedFacts struct {
	At       []time.Time `json:"at"` // when each copy's message was dropped
	LookedAt int         `json:"looked_at"`
	Depth    int         `json:"depth"`
}

// A messageLook gathers the facts.
type messageLook struct {
	app       *app
	limit     int
	consumers []string
}

// look asks all servers that are named, even after one of them has failed.
func (l *messageLook) look(ctx context.Context, m *management, id uuid.UUID) *messageFacts {
	facts := &messageFacts{ID: id, Failures: failures{}, asked: map[string]bool{
		"BRIDGE_DATABASE_URL": l.app.config.Database.URL != "", "BRIDGE_AMQP_URL": l.app.config.AMQP.URL != "", "BRIDGE_INBOX_URL": l.app.config.Inbox.URL != ""}}
	if at := wire.MadeAt(id); !at.IsZero() {
		facts.CreatedAt = new(at.UTC())
	}
	// The questions follow a message's way, so that a message that moves meanwhile is seen twice
	// rather than never.
	if l.app.config.Database.URL != "" {
		if err := l.app.answered(ctx, func(ctx context.Context) error { return l.askLedger(ctx, facts) }); err != nil {
			facts.Ledger = nil
			facts.Failures.add(err)
		}
	}
	if l.app.config.AMQP.URL != "" {
		l.askQueues(ctx, m, facts)
	}
	err := l.app.answered(ctx, func(ctx context.Context) (err error) {
		facts.Inbox, err = l.app.claims(ctx, id.String(), l.consumers)
		return err
	})
	if err != nil {
		facts.Inbox = nil
		facts.Failures.add(err)
	}
	return facts
}

func (l *messageLook) askLedger(ctx context.Context, facts *messageFacts) error {
	ledger, err := l.app.ledger(ctx)
	if err == nil {
		facts.Ledger, err = l.askRow(ctx, ledger, facts.ID)
	}
	return err
}

// settlePatience bounds the question whether a transaction is open.
const settlePatience = time.Second

func (l *messageLook) askRow(ctx context.Context, ledger *database.Ledger, id uuid.UUID) (*rowFacts, error) {
	row := &rowFacts{Identity: ledger.Identity(), State: rowCommitted, Holders: []inspect.Holder{}}
	found, _, err := ledger.Committed(ctx, []uuid.UUID{id})
	if err != nil {
		return nil, err
	}
	if len(found) > 0 {
		return row, row.askCommitted(ctx, ledger, id)
	}
	if ledger.Watcher != nil {
		if row.Holders, err = ledger.Holders(ctx, id); err != nil {
			return nil, err
		}
	}
	// Even without holders: the login may have no right to see them.
	outcome, _, err := ledger.Settle(ctx, id, settlePatience)
	if err != nil {
		return nil, err
	}
	switch outcome {
	case driver.StillOpen:
		row.State = rowOpen
	case driver.RolledBack:
		row.State = rowAbsent
		if ledger.Features().Sweeps {
			row.sweptBefore, err = ledger.SweptBefore(ctx)
		}
	case driver.Committed: // it has committed meanwhile
		err = row.askCommitted(ctx, ledger, id)
	}
	if row.State != rowOpen {
		row.Holders = []inspect.Holder{}
	}
	return row, err
}

// askCommitted finds out whether a committed row carries the message, and when the row was inserted.
// A locked row that carries the message looks like a plain row. But it gets no RecordedAt, so the
// message never counts as lost.
func (f *rowFacts) askCommitted(ctx context.Context, ledger *database.Ledger, id uuid.UUID) (err error) {
	if ledger.Features().Carries {
		row, err := ledger.CarriedRow(ctx, id)
		if err != nil {
			return err
		}
		if row != nil {
			f.Carried = new(carriedBy(*row))
			at, err := databaseTime(ctx, ledger)
			if err == nil && row.Delayed(at) {
				f.Delayed = &row.StageAt
			} else {
				f.RecordedAt = &row.RecordedAt
			}
			return err
		}
	}
	f.RecordedAt, err = recordedAt(ctx, ledger, id)
	return err
}

// recordedAt returns the time at which a row without a message was inserted. It returns nil if the
// row is not among the first ledgerRowsMost.
func recordedAt(ctx context.Context, ledger driver.RecordedRows, id uuid.UUID) (*time.Time, error) {
	if !ledger.Features().Sweeps {
		return nil, nil
	}
	rows, err := ledger.Orphans(ctx, 0, ledgerRowsMost)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(rows, func(o driver.Orphan) bool { return o.ID == id }); i >= 0 {
		return &rows[i].RecordedAt, nil
	}
	return nil, nil
}

func (l *messageLook) askQueues(ctx context.Context, m *management, facts *messageFacts) {
	if _, err := l.app.broker(ctx); err != nil {
		facts.Failures.add(err)
		return
	}
	t := l.app.topology()
	if err := l.askDead(ctx, facts, t.DeadQueue()); err != nil {
		facts.Dead = nil
		facts.Failures.add(err)
	}
	if err := l.askAudit(ctx, facts, t.AuditQueue()); err != nil {
		facts.Failures.add(err)
	}
	verifiers := append(t.OrderedQueues(), t.Queue, t.WaitingQueue())
	depths, err := l.app.depths(ctx, append(slices.Clone(verifiers), t.DeadQueue())...)
	if err != nil {
		facts.Failures.add(err)
		return
	}
	facts.Queues = make(map[string]int, len(depths))
	for name, queue := range depths {
		facts.Queues[name] = queue.Messages
	}
	for _, queue := range verifiers {
		facts.ready += depths[queue].Messages
	}
	if facts.Held, err = l.app.held(ctx, m, verifiers); err != nil {
		facts.Failures.add(err)
	}
}

func (l *messageLook) askDead(ctx context.Context, facts *messageFacts, queue string) (err error) {
	facts.Dead = &deadFacts{Found: []*deadMessage{}}
	facts.Dead.LookedAt, facts.Dead.Depth, err = l.app.look(ctx, queue, l.limit, func(d amqp.Delivery) error {
		if m := readDead(d, l.app.topology().Queue); m.has(facts.ID.String()) {
			m.lighten()
			facts.Dead.Found = append(facts.Dead.Found, m)
		}
		return nil
	})
	return err
}

// askAudit looks into the audit queue, if there is one.
func (l *messageLook) askAudit(ctx context.Context, facts *messageFacts, queue string) (err error) {
	dropped := &droppedFacts{At: []time.Time{}}
	dropped.LookedAt, dropped.Depth, err = l.app.look(ctx, queue, l.limit, func(d amqp.Delivery) error {
		if strings.EqualFold(d.MessageId, facts.ID.String()) {
			at, _ := time.Parse(time.RFC3339, text(d.Headers[wire.HeaderDroppedAt]))
			dropped.At = append(dropped.At, at)
		}
		return nil
	})
	switch {
	case missing(err), denied(err) && l.app.config.Audit == 0:
		return nil
	case err == nil:
		facts.Dropped = dropped
	}
	return err
}
