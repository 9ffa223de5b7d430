package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/faults/parts"
)

// Judge reads the records and judges them. Call it after Finish.
func (w *World) Judge(ctx context.Context) (Totals, []Violation, error) {
	records, err := w.records(ctx)
	if err != nil {
		return Totals{}, nil, err
	}
	totals, violations := Judge(records)
	for _, err := range w.ended {
		violations = append(violations, Violation{Ended, uuid.Nil, err.Error()})
	}
	return totals, violations, nil
}

// End calls Finish and Judge for a test that must find no violation, and at least inOrder messages
// with an order key: fewer would show nothing.
func (w *World) End(inOrder int) {
	w.t.Helper()
	w.Must("finish", w.Finish(w.t.Context()))
	totals, violations, err := w.Judge(w.t.Context())
	w.Must("judge", err)
	if len(violations) > 0 {
		w.t.Log(w.Histories(violations))
		w.t.Error(Summary(violations))
	}
	if totals.Committed == 0 || totals.InOrder < inOrder {
		w.t.Error("too little has come to show anything")
	}
	w.t.Log(totals)
}

// Histories returns the course of the run, and the diary's lines about the violations' messages, a
// few of each kind.
func (w *World) Histories(violations []Violation) string {
	const most = 4 // of each kind
	var ids []uuid.UUID
	seen := make(map[Kind]int)
	for _, v := range violations {
		if v.ID != uuid.Nil && seen[v.Kind] < most && !slices.Contains(ids, v.ID) {
			ids = append(ids, v.ID)
			seen[v.Kind]++
		}
	}
	return w.HistoriesOf(ids)
}

// HistoriesOf returns the course of the run, and the diary's lines about messages.
func (w *World) HistoriesOf(ids []uuid.UUID) string {
	var text strings.Builder
	fmt.Fprintf(&text, "the course:\n  %s\n", strings.Join(w.Diary.course(), "\n  "))
	for id, lines := range w.Diary.history(ids) {
		fmt.Fprintf(&text, "history of %s:\n  %s\n", id, strings.Join(lines, "\n  "))
	}
	return text.String()
}

func (w *World) records(ctx context.Context) (r Records, err error) {
	w.mu.Lock()
	r.Events = w.events
	w.mu.Unlock()
	r.Held = len(w.Receivers) * parts.ReceiverPrefetch
	const perDelivery = 20 // messages; invent makes about 7 on average
	r.Judging = len(w.Verifiers) * parts.VerifierOptions(w.config.Topology).Prefetch * perDelivery

	var orders []struct {
		ID uuid.UUID
		Placed
	}
	var effects []uuid.UUID
	err = errors.Join(
		w.shop.read(ctx, &orders, `SELECT id, target, at, name, number, not_before FROM orders`),
		w.shop.read(ctx, &r.Rows, `SELECT id FROM bridge_ledger`),
		w.post.read(ctx, &r.Arrivals, `SELECT id, target, intact, at FROM arrivals ORDER BY place`),
		w.post.read(ctx, &effects, `SELECT id FROM effects`),
	)
	r.Orders, r.Effects = make(map[uuid.UUID]Placed), make(map[uuid.UUID]int)
	for _, o := range orders {
		r.Orders[o.ID] = o.Placed
	}
	for _, id := range effects {
		r.Effects[id]++
	}
	var errs [4]error
	r.Staged, errs[0] = w.counted(ctx, w.stagingQueues()...)
	r.Waiting, errs[1] = w.counted(ctx, w.receiverQueues()...)
	r.Dead, errs[2] = w.deadLetters()
	errs[3] = w.readDiary(&r)
	if err = errors.Join(err, errors.Join(errs[:]...)); err != nil {
		err = fmt.Errorf("read records: %w", err)
	}
	return r, err
}

// strayHeader has the name of a stray, which may have no usable message ID.
const strayHeader = "stray"

// deadLetters removes and returns all messages of the dead queue.
func (w *World) deadLetters() (out []DeadLetter, err error) {
	err = w.onChannel(func(ch *amqp.Channel) error {
		for {
			const autoAck = true
			d, ok, err := ch.Get(w.config.Topology.DeadQueue(), autoAck)
			if err != nil || !ok {
				return err
			}
			if d, err = wire.OpenDead(d); err != nil {
				return err
			}
			var letter DeadLetter
			letter.ID, _ = uuid.Parse(d.MessageId)
			letter.Stray, _ = d.Headers[strayHeader].(string)
			letter.Reason, _ = d.Headers[wire.HeaderDeadReason].(string)
			letter.Verdict, _ = d.Headers[wire.HeaderDeadVerdict].(string)
			out = append(out, letter)
		}
	})
	return out, err
}

// readDiary reads the records' explanations from the diary.
func (w *World) readDiary(r *Records) error {
	r.Canaries, r.Committed, r.Forgotten = make(map[uuid.UUID]bool), make(map[uuid.UUID]time.Time), make(map[uuid.UUID]time.Time)
	r.AtTarget = make(map[uuid.UUID]time.Time)
	r.Commits, r.Seen = make(map[uuid.UUID]Commit), make(map[uuid.UUID]Seen)
	r.Carried, r.Claims, r.Done = make(map[uuid.UUID]bool), make(map[uuid.UUID]int), make(map[uuid.UUID]int)
	today := time.Now().UTC()
	return w.Diary.scan(func(line string, at time.Time, writer string, id uuid.UUID, what string) {
		if what == parts.Ended { // also after an intended rollback; then there is no order
			r.Commits[id] = Commit{onDay(today, at), writer}
		}
		if what == parts.Cancelled {
			r.Cancelled++
		}
		if what == parts.Carried || what == parts.CarriedAlone {
			r.Carried[id] = true
		}
		if !strings.HasPrefix(writer, string(parts.Verifier)) {
			return
		}
		if id == uuid.Nil {
			if strings.Contains(line, `msg="session ended"`) {
				r.SessionsEnded = append(r.SessionsEnded, SessionEnd{writer, onDay(today, at), line})
			}
			return
		}
		seen := r.Seen[id]
		seen.Again = seen.Again || what == parts.Redelivered
		if !slices.Contains(seen.By, writer) {
			seen.By = append(seen.By, writer)
		}
		r.Seen[id] = seen
		if strings.HasPrefix(what, parts.Done) {
			r.Done[id]++
		}
		switch what {
		case parts.Claimed:
			r.Claims[id]++
		case parts.Recorded:
			r.Canaries[id] = true
		case parts.Found, parts.Settled + driver.Committed.String():
			if _, known := r.Committed[id]; !known {
				r.Committed[id] = onDay(today, at)
			}
		case parts.ToForget:
			r.Forgotten[id] = onDay(today, at)
			if _, known := r.AtTarget[id]; !known {
				r.AtTarget[id] = r.Forgotten[id]
			}
		}
	})
}

// onDay returns the latest past time with this clock time.
func onDay(now, clock time.Time) time.Time {
	y, m, d := now.Date()
	at := time.Date(y, m, d, clock.Hour(), clock.Minute(), clock.Second(), clock.Nanosecond(), time.UTC)
	if at.After(now) {
		at = at.AddDate(0, 0, -1)
	}
	return at
}
