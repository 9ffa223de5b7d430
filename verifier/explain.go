package verifier

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/inspect"
)

const (
	// explainInterval is the longest time between two queries for holders.
	explainInterval = 5 * time.Second
	// explainLimit bounds the remembered transactions that the log has named.
	explainLimit = 1000
)

// An explainer asks the database for the transactions that messages in the room wait for.
type explainer struct {
	watcher inspect.Watcher
	running sideCall
	after   time.Duration // how long a message waits before the log names the holder
	room    *waitingRoom
	log     *slog.Logger

	reported reportedHolders
}

func newExplainer(r *resources, room *waitingRoom) *explainer {
	return &explainer{watcher: r.opts.Watcher, running: r.calls.explain, after: r.opts.ExplainAfter, room: room, log: r.log}
}

func (e *explainer) round(ctx context.Context) (time.Duration, error) {
	interval := min(e.after, explainInterval)
	slow := e.room.longest()
	if err := e.logWaitEnds(ctx, slow); err != nil {
		return interval, err
	}
	now := time.Now()
	for i, m := range slow {
		if waited := now.Sub(m.waitingSince()); waited < e.after {
			if slow = slow[:i]; i == 0 {
				return min(interval, e.after-waited), nil // until ExplainAfter has passed
			}
			break
		}
	}
	if len(slow) == 0 {
		return interval, nil
	}
	err := e.logHolders(ctx, slow[0], len(slow))
	if other := rand.IntN(len(slow)); err == nil && other > 0 { // the other message may wait for another transaction
		err = e.logHolders(ctx, slow[other], len(slow))
	}
	return interval, err
}

// logHolders logs the sessions that m waits for.
func (e *explainer) logHolders(ctx context.Context, m *message, waiting int) error {
	holders, err := e.holders(ctx, m.staged.ID)
	if err != nil {
		return fmt.Errorf("query the holders of message %s: %w", m.id(), err)
	}
	now := time.Now()
	for _, h := range holders {
		if !e.reported.due(h, m.staged.ID, now, e.after) {
			continue
		}
		said := []any{"message_id", m.id(), "waited", now.Sub(m.waitingSince()).Round(time.Millisecond), "waiting", waiting}
		e.log.Warn("a message waits for an open transaction", append(said, attributesOf(h)...)...)
	}
	return nil
}

func (e *explainer) holders(ctx context.Context, id uuid.UUID) ([]inspect.Holder, error) {
	return inTime(ctx, e.running, ledgerTimeout, func(ctx context.Context) ([]inspect.Holder, error) {
		return e.watcher.Holders(ctx, id)
	})
}

// attributesOf returns the attributes of a holder that the login may see.
func attributesOf(h inspect.Holder) (attributes []any) {
	for _, a := range []struct{ name, text string }{
		{"session", h.Session}, {"login", h.Login}, {"program", h.Program}, {"host", h.Host}, {"state", h.State},
	} {
		if a.text != "" {
			attributes = append(attributes, a.name, a.text)
		}
	}
	if !h.Since.IsZero() {
		attributes = append(attributes, "open_since", h.Since)
	}
	if h.Statement != "" {
		attributes = append(attributes, "statement", h.Statement)
	}
	if h.State == "" {
		attributes = append(attributes, "hint", "the ledger's login may not see more; on PostgreSQL, grant it pg_read_all_stats")
	}
	return attributes
}

// logWaitEnds logs the end of the wait of each message for which a holder was named. It asks the
// database, because a message that is being set aside is held by no verifier for a moment.
func (e *explainer) logWaitEnds(ctx context.Context, waiting []*message) error {
	for t, last := range e.reported {
		if slices.ContainsFunc(waiting, func(m *message) bool { return m.staged.ID == last.id }) {
			continue
		}
		holders, err := e.holders(ctx, last.id)
		if err != nil {
			return fmt.Errorf("query whether message %s still waits: %w", last.id, err)
		}
		if len(holders) > 0 { // one such answer takes a second
			return nil
		}
		e.log.Info("a message no longer waits for an open transaction", "message_id", last.id.String(), "session", t.session)
		delete(e.reported, t)
	}
	return nil
}

// reportedHolders contains the transactions that the log has named, each with the time to name it
// again.
type reportedHolders map[holderKey]nextReport

type holderKey struct {
	session string
	since   time.Time
}

type nextReport struct {
	at   time.Time
	wait time.Duration
	id   uuid.UUID // of the message that waited for the transaction
}

// due reports whether a holder is to be named now: at first, then after wait, then after twice that
// time, and so on.
func (r *reportedHolders) due(h inspect.Holder, id uuid.UUID, now time.Time, wait time.Duration) bool {
	key := holderKey{h.Session, h.Since}
	last, known := (*r)[key]
	switch {
	case !known:
		last.wait = wait
	case now.Before(last.at):
		return false
	}
	if *r == nil || len(*r) >= explainLimit {
		*r = make(reportedHolders)
	}
	(*r)[key] = nextReport{now.Add(last.wait), 2 * last.wait, id}
	return true
}
