package verifier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

const (
	// stageInterval is the time between rounds, most of which only check held markers. roomInterval is
	// the time between rounds while rows wait for room in the staging queue.
	stageInterval = 100 * time.Millisecond
	roomInterval  = 10 * time.Millisecond
	// claimLimit and claimBytes bound one claim.
	claimLimit = 500
	claimBytes = 1 << 20
	// idsLimit bounds the IDs in one line of the log.
	idsLimit = 20
)

// restaging bounds the groups in which messages are staged again.
var restaging = wire.Packing{Records: wire.MaxMembers, Bytes: 64 << 10}

// A stager stages carried messages again whose staged copy is lost, and carried messages that were
// never staged. It detects a lost copy by a marker: a message that a verifier publishes to the
// staging queue after it has seen the row committed, and that the same or another verifier moves to
// the waiting queue. When a verifier receives the marker from there, each copy that was in the
// queues before it has passed a verifier. That verifier has forwarded the message and deleted the
// row, or has moved the row's stage time on. So a row that is still unchanged has no copy.
//
// No message depends on a stager. A stager belongs to one session, because the end of a channel
// returns deliveries to the queues, in front of the markers.
type stager struct {
	ledger  driver.RecordedRows
	running sideCall // for Due, Claim and Committed
	carried *carriedSet
	queues  *ownQueues
	rows    *dueRows
	markers markers
	staged  stagedWindow
	failing bool          // the last publication failed
	count   *atomic.Int64 // messages that were staged again
	limit   *wire.SizeLimit
	log     *slog.Logger
}

func newStager(r *resources, running sideCall, carried *carriedSet, blocked func() string) *stager {
	queues := &ownQueues{
		staging: r.opts.Topology.Queue, waiting: r.opts.Topology.WaitingQueue(),
		publish: r.broker.Publish, timeout: r.opts.ConfirmTimeout,
		blocked: func() bool { return blocked() != "" },
	}
	rows := newDueRows(r, running, carried, queues)
	return &stager{
		ledger: r.ledger, running: running, carried: carried, queues: queues, rows: rows,
		markers: markers{ledger: r.ledger, queues: queues, rows: rows, carried: carried, wait: markerOften},
		count:   &r.stats.restaged, limit: &r.limit, log: r.log,
	}
}

func (g *stager) round(ctx context.Context) (time.Duration, error) {
	passed := g.markers.passOn(ctx)
	look, err := g.rows.search(ctx)
	g.markers.evaluate()
	errs := []error{passed, err, g.removeDoneElsewhere(ctx)}
	next := stageInterval
	waits, err := g.stage(ctx)
	if errs = append(errs, err); waits {
		next = roomInterval
	}
	if !look.IsZero() {
		errs = append(errs, g.markers.send(ctx, look))
	}
	return next, errors.Join(errs...)
}

// stage claims and publishes candidates that have no copy in a queue, the longest due first, as many
// as there is room for. It reports whether others wait for room.
func (g *stager) stage(ctx context.Context) (waits bool, err error) {
	room, roomBytes := g.staged.room(time.Now())
	switch {
	case g.rows.wasBlocked || g.queues.blocked():
		return false, nil
	case roomBytes <= 0:
		return g.rows.moreStageable(0), nil
	case room < claimLimit && g.rows.moreStageable(room): // soon there is room for a full claim
		return true, nil
	}
	rows, left := g.rows.stageable(), g.rows.undeleted()
	for len(rows) > 0 && room > 0 && roomBytes > 0 {
		if g.queues.blocked() { // before a claim moves a stage time in vain
			return false, nil
		}
		most, mostBytes := min(claimLimit, room), int64(min(claimBytes, roomBytes))
		if g.failing { // only one stage time moves in vain
			most = 1
		}
		var batch []driver.DueRow
		size := int64(0)
		for len(rows) > 0 && len(batch) < most && (size == 0 || size+rows[0].Bytes <= mostBytes) {
			if row := rows[0]; !left[row.ID] && !g.carried.has(row.ID) {
				batch, size = append(batch, row), size+row.Bytes
			} else {
				g.rows.noteCopy(row)
			}
			rows = rows[1:]
		}
		room, roomBytes = room-len(batch), roomBytes-int(size)
		if err := g.claim(ctx, batch); err != nil {
			return false, err
		}
	}
	return len(rows) > 0, nil
}

// removeDoneElsewhere queries the ledger for messages on their way if none has been done here for
// long. Messages whose rows are gone have left the queues.
func (g *stager) removeDoneElsewhere(ctx context.Context) error {
	silent := g.staged.silent(time.Now())
	if len(silent) == 0 {
		return nil
	}
	there, err := inTime(ctx, g.running, ledgerTimeout, func(ctx context.Context) ([]uuid.UUID, error) {
		there, _, err := g.ledger.Committed(ctx, silent)
		return there, err
	})
	if err != nil {
		return fmt.Errorf("look up %d staged messages: %w", len(silent), err)
	}
	stays := setOf(there)
	for _, id := range silent {
		if !stays[id] {
			g.staged.noteDone(id)
		}
	}
	return nil
}

func (g *stager) claim(ctx context.Context, batch []driver.DueRow) error {
	if len(batch) == 0 {
		return nil
	}
	unpublished := make(map[uuid.UUID]bool)
	for _, row := range batch {
		unpublished[row.ID] = row.Unpublished()
		delete(g.rows.candidates, row.ID)
	}
	claimed, err := inTime(ctx, g.running, ledgerTimeout, func(ctx context.Context) ([]driver.Carried, error) {
		return g.ledger.Claim(ctx, batch)
	})
	if err != nil {
		return fmt.Errorf("claim %d carried messages: %w", len(batch), err)
	}
	if len(claimed) == 0 {
		return nil
	}
	g.staged.add(claimed)
	staged, err := g.publishCarried(ctx, claimed)
	g.staged.keep(claimed, staged)
	g.failing = err != nil
	if len(staged) > 0 {
		g.count.Add(int64(len(staged)))
		g.rows.unstageable.staged(staged)
		lost := 0
		for _, id := range staged {
			if !unpublished[id] {
				lost++
			}
		}
		level := slog.LevelDebug // a delayed message, or one of an outage, which its sender has logged
		if lost > 0 {
			level = slog.LevelInfo
		}
		g.log.Log(ctx, level, "carried messages are staged", "messages", len(staged),
			"never_published", len(staged)-lost, "copies_lost", lost, "message_ids", someIDs(staged))
	}
	if err != nil {
		return fmt.Errorf("stage %d carried messages, which are due again later: %w", len(claimed)-len(staged), err)
	}
	return nil
}

func someIDs(ids []uuid.UUID) string {
	var text []string
	for _, id := range ids[:min(len(ids), idsLimit)] {
		text = append(text, id.String())
	}
	return strings.Join(text, " ")
}

// publishCarried publishes claimed messages, and returns the IDs that the broker has confirmed. If
// the broker refuses one for good, all are published alone, which identifies it. The refused
// message stays in its row, whose stage time has moved on.
func (g *stager) publishCarried(ctx context.Context, claimed []driver.Carried) (staged []uuid.UUID, err error) {
	claimed = g.stageable(claimed)
	switch err := g.restage(ctx, claimed...); {
	case err == nil:
		for _, c := range claimed {
			staged = append(staged, c.ID)
		}
		return staged, nil
	case !refusedForGood(err):
		return nil, err
	}
	for _, c := range claimed {
		switch err := g.restage(ctx, c); {
		case err == nil:
			staged = append(staged, c.ID)
		case refusedForGood(err):
			g.refuse(c.ID, err)
		default:
			return staged, err
		}
	}
	return staged, nil
}

// stageable returns the messages that can be staged.
func (g *stager) stageable(claimed []driver.Carried) (stageable []driver.Carried) {
	for _, c := range claimed {
		message, err := wire.ReadRecord(g.ledger.Identity(), c.Message)
		switch {
		case err != nil:
		case message.ID != c.ID:
			err = fmt.Errorf("the record has the ID %s", message.ID)
		case message.OrderKey != "":
			err = errors.New("the message has an order key, so no row may carry it")
		case !message.Carried:
			c.Message, err = g.marked(c.Message)
		}
		if err != nil {
			g.refuse(c.ID, err)
			continue
		}
		stageable = append(stageable, c)
	}
	return stageable
}

// marked returns a record with HeaderCarried. Records of messages that an earlier release had
// parked lack it, and without it a verifier cannot recognize a carried message.
func (g *stager) marked(record []byte) ([]byte, error) {
	message, err := wire.Alone(g.ledger.Identity(), record)
	if err != nil {
		return nil, err
	}
	message.Headers[wire.HeaderCarried] = true
	return wire.EncodeRecord(message), nil
}

// refuse logs once that a message cannot be staged.
func (g *stager) refuse(id uuid.UUID, err error) {
	if g.rows.unstageable.add(id) {
		g.log.Error("carried message cannot be staged and stays in its row", "message_id", id.String(), "error", err)
	}
}

// restage publishes messages to the staging queue, in groups. Each keeps the time of staging in its
// record.
func (g *stager) restage(ctx context.Context, carried ...driver.Carried) error {
	var records [][]byte
	for _, c := range carried {
		records = append(records, c.Message)
	}
	staged, err := g.limit.Bound(restaging).Pack(g.ledger.Identity(), records)
	if err != nil {
		return err
	}
	for i := range staged {
		staged[i].Headers[wire.HeaderRestaged] = true
	}
	err = g.queues.send(ctx, g.queues.staging, staged...)
	g.limit.Learn(err)
	return err
}

// refusedForGood reports whether err means that the broker will never accept one of the messages.
// Missing rights do not count: an operator will grant them.
func refusedForGood(err error) bool {
	refusal := bridge.Refusal(err)
	return refusal != nil && refusal.Code != amqp.AccessRefused || errors.Is(err, bridge.ErrInvalidMessage) || errors.Is(err, bridge.ErrMalformed)
}

// state returns, for State, how many carried rows are due as far as they are remembered, for how
// long the first of them has been due, and how many cannot be staged.
func (g *stager) state(now time.Time) (due int, overdue time.Duration, unstageable int) {
	if g == nil {
		return 0, 0, 0
	}
	due, overdue = g.rows.state(now)
	return due, overdue, g.rows.unstageable.count()
}
