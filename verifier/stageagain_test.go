package verifier

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier/internal/consume"
)

// A carryingWorld is a ledger and a broker's two queues, for any number of verifiers. Only the test
// moves messages through the queues.
type carryingWorld struct {
	driver.Ledger
	t        *testing.T
	identity uuid.UUID
	turn     chan struct{} // holds an element while the test, or a round of a verifier, works

	mu               sync.Mutex
	rows             map[uuid.UUID]*driver.DueRow
	messages         map[uuid.UUID][]byte
	index            []driver.DueRow // the rows by stage time, sorted again when their number has changed
	looks            []driver.DueRow // their positions
	back             time.Duration   // by which the database's clock has gone back
	lookTakes        time.Duration
	claims           int
	staging, waiting []amqp.Publishing
	blocked          bool
	refuse           func(amqp.Publishing) error
	sessions         []*session
}

// inCarryingWorld runs a test in a world with a fake clock.
func inCarryingWorld(t *testing.T, test func(t *testing.T, w *carryingWorld)) {
	synctest.Test(t, func(t *testing.T) {
		w := &carryingWorld{
			t: t, identity: uuid.New(), turn: make(chan struct{}, 1),
			rows: make(map[uuid.UUID]*driver.DueRow), messages: make(map[uuid.UUID][]byte),
		}
		w.turn <- struct{}{}
		test(t, w)
		<-w.turn
	})
}

func (w *carryingWorld) Identity() uuid.UUID { return w.identity }

func (w *carryingWorld) Features() driver.Features { return driver.Features{Carries: true} }

// commits adds rows that carry messages.
func (w *carryingWorld) commits(n int, published bool, change func(*amqp.Publishing)) (ids []uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for range n {
		id := uuid.Must(uuid.NewRandom())
		staged := wire.Staged{Message: bridge.Message{ID: id, RoutingKey: "target"}, Ledger: w.identity, Carried: true, StagedAt: time.Now()}
		p := staged.Publishing()
		if change != nil {
			change(&p)
		}
		w.messages[id] = wire.EncodeRecord(p)
		row := &driver.DueRow{ID: id, RecordedAt: w.now(), StageAt: w.now(), Bytes: int64(len(w.messages[id]))}
		if published {
			row.StageAt = row.StageAt.Add(driver.PublishedGrace)
		}
		w.rows[id], w.index = row, nil
		ids = append(ids, id)
	}
	return ids
}

// delays adds rows of delayed messages. Their stage times are apart from each other by a duration.
func (w *carryingWorld) delays(n int, first time.Time, apart time.Duration) (ids []uuid.UUID) {
	ids = w.commits(n, false, nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, id := range ids {
		at := first.Add(time.Duration(i) * apart)
		w.rows[id].RecordedAt, w.rows[id].StageAt = at, at
	}
	return ids
}

// now returns the database's time.
func (w *carryingWorld) now() time.Time { return time.Now().UTC().Add(-w.back) }

func (w *carryingWorld) Due(_ context.Context, after driver.DueRow, limit int) (due []driver.DueRow, now time.Time, err error) {
	time.Sleep(w.lookTakes)
	w.mu.Lock()
	defer w.mu.Unlock()
	now = w.now()
	w.looks = append(w.looks, after)
	order := func(a, b driver.DueRow) int {
		return cmp.Or(a.StageAt.Compare(b.StageAt), bytes.Compare(a.ID[:], b.ID[:]))
	}
	if len(w.index) != len(w.rows) {
		w.index = nil
		for _, row := range w.rows {
			w.index = append(w.index, *row)
		}
		slices.SortFunc(w.index, order)
	}
	at, found := slices.BinarySearchFunc(w.index, after, order)
	if found {
		at++
	}
	for _, row := range w.index[at:] {
		if row.StageAt.After(now) || len(due) == limit {
			break
		}
		due = append(due, row)
	}
	return due, now, nil
}

func (w *carryingWorld) Claim(_ context.Context, rows []driver.DueRow) (claimed []driver.Carried, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.claims++
	bytes := 0
	for _, row := range rows {
		if is := w.rows[row.ID]; is != nil && is.StageAt.Equal(row.StageAt) {
			claimed = append(claimed, driver.Carried{ID: row.ID, Message: w.messages[row.ID]})
			bytes += len(w.messages[row.ID])
			w.moveOn(is)
		}
	}
	if len(rows) > claimLimit || len(rows) > 1 && bytes > claimBytes {
		w.t.Errorf("%d rows of %d bytes are claimed at once", len(rows), bytes)
	}
	return claimed, nil
}

func (w *carryingWorld) Committed(_ context.Context, ids []uuid.UUID) (there []uuid.UUID, _ driver.Instance, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		if w.rows[id] != nil {
			there = append(there, id)
		}
	}
	return there, "", nil
}

func (w *carryingWorld) Touch(_ context.Context, ids []uuid.UUID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		if row := w.rows[id]; row != nil {
			w.moveOn(row)
		}
	}
	return nil
}

func (w *carryingWorld) moveOn(row *driver.DueRow) {
	w.index = nil
	now := w.now()
	row.StageAt = now.Add(min(max(now.Sub(row.RecordedAt), driver.StageAgainAfter), driver.StageAgainWithin))
}

func (w *carryingWorld) forget(id uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.index = nil
	delete(w.rows, id)
}

func (w *carryingWorld) publish(_ context.Context, out []bridge.Outgoing) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range out {
		if w.refuse != nil {
			if err := w.refuse(p.Publishing); err != nil {
				return err
			}
		}
		switch p.RoutingKey {
		case "twoqueue":
			w.staging = append(w.staging, p.Publishing)
		case "twoqueue.waiting":
			w.waiting = append(w.waiting, p.Publishing)
		default:
			w.t.Errorf("published to %v", p.Target)
		}
	}
	return nil
}

// markers removes and returns the markers in a queue.
func (w *carryingWorld) markers(queue *[]amqp.Publishing) (markers []amqp.Publishing) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*queue = slices.DeleteFunc(*queue, func(p amqp.Publishing) bool {
		marker := wire.IsMarker(amqp.Delivery{Headers: p.Headers})
		if marker {
			markers = append(markers, p)
		}
		return marker
	})
	return markers
}

// passMarkers delivers the markers in the staging queue to one verifier, and the markers in the
// waiting queue to another.
func (w *carryingWorld) passMarkers(fromStaging, fromWaiting *session) {
	for _, m := range w.markers(&w.staging) {
		fromStaging.brings(fromStaging.staging, m)
	}
	for _, m := range w.markers(&w.waiting) {
		fromWaiting.brings(fromWaiting.waiting, m)
	}
}

// walks returns the number of looks that began at the first row.
func (w *carryingWorld) walks() (n int) {
	for _, after := range w.looks {
		if after.StageAt.IsZero() {
			n++
		}
	}
	return n
}

func (w *carryingWorld) block(blocked bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.blocked = blocked
}

// staged removes and returns the messages that were staged again, by ID.
func (w *carryingWorld) staged() map[uuid.UUID]wire.Staged {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make(map[uuid.UUID]wire.Staged)
	for _, p := range w.staging {
		d := amqp.Delivery{Headers: p.Headers, MessageId: p.MessageId, Body: p.Body}
		if wire.IsMarker(d) {
			continue
		}
		members, err := wire.Members(d)
		if err != nil {
			w.t.Error(err)
		}
		for _, member := range members {
			m, err := wire.Parse(member)
			if err != nil {
				w.t.Error(err)
			}
			if _, twice := all[m.ID]; twice || !m.Restaged || !m.Carried {
				w.t.Errorf("staged again %+v; twice: %v", m, twice)
			}
			all[m.ID] = m
			for _, s := range w.sessions {
				s.stager.staged.noteDone(m.ID)
			}
		}
	}
	w.staging = nil
	return all
}

// session returns a session without servers.
func (w *carryingWorld) session(ledger driver.Ledger, running sideCall) *session {
	s := carryingSession(ledger)
	s.stager = newStager(s.resources, running, s.carried, s.blocked)
	s.stager.queues.publish = w.publish
	w.sessions = append(w.sessions, s)
	s.stager.queues.blocked = func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.blocked
	}
	return s
}

// verifier begins a session that stages again.
func (w *carryingWorld) verifier() *session { return w.runs(w.session(w, newSideCall())) }

func (w *carryingWorld) runs(s *session) *session {
	ctx, cancel := context.WithCancel(w.t.Context())
	w.t.Cleanup(cancel)
	go s.jobs.stage.Run(ctx, func(ctx context.Context) (time.Duration, error) {
		w.turn <- struct{}{}
		defer func() { <-w.turn }()
		return s.stager.round(ctx)
	})
	return s
}

// brings delivers a message to a consumer.
func (s *session) brings(c *consume.Consumer, p amqp.Publishing) *consume.Unacked {
	unacked := c.Deliver(amqp.Delivery{})
	s.unpack(unacked, amqp.Delivery{Headers: p.Headers, MessageId: p.MessageId, Body: p.Body})
	return unacked
}

// marker returns a marker that was sent now.
func (w *carryingWorld) marker() amqp.Publishing {
	return wire.Marker{Ledger: w.identity, Look: w.now()}.Publishing()
}

// wait lets the verifiers work for a duration.
func (w *carryingWorld) wait(d time.Duration) {
	<-w.turn
	time.Sleep(d)
	synctest.Wait()
	w.turn <- struct{}{}
}

// moment is longer than any round.
const moment = dueRarely + stageInterval

// A row whose publication was lost is staged again some seconds later.
func TestALostMessageIsStagedAgain(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		verifiers := []*session{w.verifier(), w.verifier()}
		w.wait(dueIdle + moment) // the verifiers find no row
		began := time.Now()
		id := w.commits(1, true, nil)[0]
		at := time.Now().Truncate(time.Millisecond)
		first, second := verifiers[0], verifiers[1]
		for len(w.rows) > 0 {
			w.wait(10 * time.Millisecond)
			w.passMarkers(first, second)
			if m, ok := w.staged()[id]; ok {
				if took := time.Since(began); took > dueIdle+5*time.Second { // the first row is found only after dueIdle
					t.Errorf("it took %v", took)
				}
				if !m.StagedAt.Equal(at) {
					t.Errorf("the copy was staged at %v, must be the original's %v", m.StagedAt, at)
				}
				break
			}
			if time.Since(began) > time.Minute {
				t.Fatal("it is not staged again")
			}
		}
		if first.stats.restaged.Load() != 0 || second.stats.restaged.Load() != 1 {
			t.Errorf("counted %d and %d", first.stats.restaged.Load(), second.stats.restaged.Load())
		}
	})
}

// GONE_MARKER of the model: time alone shows no loss.
func TestNothingIsStagedAgainWithoutAMarker(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		w.verifier()
		w.commits(1, true, nil)
		w.wait(time.Hour)
		// While no marker comes back, markers become rare.
		if n := len(w.markers(&w.staging)); n < 100 || n > 300 {
			t.Errorf("%d markers in an hour", n)
		}
		if n := len(w.staged()); n != 0 || w.claims != 0 {
			t.Errorf("%d are staged again", n)
		}
	})
}

// When a marker comes from the waiting queue, rows are staged again that were seen long enough
// before its look.
func TestAMarkerStagesAgainOnlyRowsSeenBeforeItsLook(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(s *session, w *carryingWorld, id uuid.UUID) (marker amqp.Publishing)
		staged  bool
	}{
		"a row that was seen long before its look": {func(_ *session, w *carryingWorld, _ uuid.UUID) amqp.Publishing {
			return w.marker()
		}, true},
		// GONE_FIRST_SEEN and GONE_PAUSE_BEFORE_LOOK of the model.
		"a row that was seen after its look": {func(s *session, w *carryingWorld, id uuid.UUID) amqp.Publishing {
			w.forget(id)
			marker := w.marker()
			w.commits(1, true, nil)
			w.wait(driver.PublishedGrace + moment)
			return marker
		}, false},
		"a row that was seen just before its look": {func(_ *session, w *carryingWorld, id uuid.UUID) amqp.Publishing {
			w.forget(id)
			w.commits(1, true, nil)
			w.wait(driver.PublishedGrace + seenBefore - time.Millisecond)
			return w.marker()
		}, false},
		// GONE_SEEN_BY_READER of the model.
		"a row that only another verifier has seen long before its look": {func(s *session, w *carryingWorld, id uuid.UUID) amqp.Publishing {
			clear(s.stager.rows.candidates)
			return w.marker()
		}, false},
		// GONE_READ_AGAIN of the model.
		"a row that was touched since": {func(_ *session, w *carryingWorld, id uuid.UUID) amqp.Publishing {
			marker := w.marker()
			_ = w.Touch(context.Background(), []uuid.UUID{id})
			return marker
		}, false},
		"a row that was touched since, and is due again": {func(_ *session, w *carryingWorld, id uuid.UUID) amqp.Publishing {
			marker := w.marker()
			_ = w.Touch(context.Background(), []uuid.UUID{id})
			w.wait(driver.StageAgainAfter + moment)
			return marker
		}, false},
		"a row that is gone": {func(_ *session, w *carryingWorld, id uuid.UUID) amqp.Publishing {
			w.forget(id)
			return w.marker()
		}, false},
		"a row whose message is held": {func(s *session, w *carryingWorld, id uuid.UUID) amqp.Publishing {
			s.delivered(s.staging, id)
			s.carried.looked(s.toLookUp.Take(1)...)
			return w.marker()
		}, false},
		"a row whose message is delivered, but that could not be deleted": {func(s *session, w *carryingWorld, id uuid.UUID) amqp.Publishing {
			s.forgetter.remember(carriedRows(id), nil)
			return w.marker()
		}, false},
		"a row that was seen before publishing was blocked": {func(_ *session, w *carryingWorld, id uuid.UUID) amqp.Publishing {
			w.block(true)
			w.wait(moment)
			w.block(false)
			return w.marker()
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
				s := w.verifier()
				id := w.commits(1, true, nil)[0]
				w.wait(dueIdle + driver.PublishedGrace + seenBefore + moment)
				unacked := s.brings(s.waiting, c.prepare(s, w, id))
				w.wait(waitingPause + moment)
				if n := len(w.staged()); (n == 1) != c.staged {
					t.Errorf("%d are staged again", n)
				}
				if !unacked.IsAcked() {
					t.Error("the marker is not acked")
				}
			})
		})
	}
}

// A DELETE of delivered messages that fails for hours causes no copies of them.
func TestADeliveredMessageThatCannotBeDeletedIsNotStagedAgain(t *testing.T) {
	fails := func(context.Context, []uuid.UUID) ([]uuid.UUID, error) { return nil, errDenied }
	const rows = 3 * forgetLimit
	for name, c := range map[string]struct {
		forget        func(context.Context, []uuid.UUID) ([]uuid.UUID, error)
		rows, minutes int
	}{
		"the DELETE fails":           {fails, rows, 5},
		"the DELETE fails for hours": {fails, 1, 180},
		"the DELETE hangs": {func(ctx context.Context, _ []uuid.UUID) ([]uuid.UUID, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, rows, 5},
		"another transaction has locked the rows": {func(_ context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
			return ids, nil
		}, rows, 5},
	} {
		t.Run(name, func(t *testing.T) {
			inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
				ids := w.commits(c.rows, true, nil)
				undeleted := w.session(undeletableWorld{w, c.forget}, newSideCall())
				other := w.verifier()
				plain := undeletedRow{id: uuid.New(), since: time.Now()}
				undeleted.forgetter.remember(append(carriedRows(ids...), plain), errDenied)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go undeleted.retryForget(ctx)
				go undeleted.touchHeld(ctx)
				for minute := range c.minutes {
					w.wait(time.Minute)
					other.brings(other.waiting, w.marker())
					w.wait(waitingPause + moment)
					if n := len(w.staged()); n > 0 {
						t.Fatalf("%d are staged again in minute %d", n, minute)
					}
				}
				want := c.rows + 1
				if time.Since(plain.since) > undeletedAge {
					want = c.rows
				}
				if n := undeleted.forgetter.count(); n != want || undeleted.stats.abandoned.Load() != int64(c.rows+1-want) {
					t.Errorf("%d rows are remembered, %d given up", n, undeleted.stats.abandoned.Load())
				}
			})
		})
	}
}

// carriedRows returns the rows of messages that were committed just now.
func carriedRows(ids ...uuid.UUID) (rows []undeletedRow) {
	for _, id := range ids {
		m := &message{received: time.Now()}
		m.staged = wire.Staged{Carried: true, Message: bridge.Message{ID: id}}
		rows = append(rows, undeletedRows([]*message{m})...)
	}
	return rows
}

// A row that fails every DELETE delays only the rows that are tried with it.
func TestARowThatFailsEveryDeleteIsTriedWithOthers(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		const rows = 3 * forgetLimit
		ids := w.commits(rows, true, nil)
		s := w.session(undeletableWorld{w, func(_ context.Context, some []uuid.UUID) ([]uuid.UUID, error) {
			if slices.Contains(some, ids[0]) {
				return nil, errDenied
			}
			for _, id := range some {
				w.forget(id)
			}
			return nil, nil
		}}, newSideCall())
		s.forgetter.remember(carriedRows(ids...), errDenied)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.retryForget(ctx)
		w.wait(time.Minute)
		if n := s.forgetter.count(); n > forgetLimit {
			t.Errorf("%d rows are left", n)
		}
	})
}

// undeletableWorld is the ledger as seen by a login that may not, or cannot, DELETE.
type undeletableWorld struct {
	*carryingWorld
	delete func(context.Context, []uuid.UUID) ([]uuid.UUID, error)
}

var errDenied = errors.New("permission denied")

func (w undeletableWorld) Forget(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	return w.delete(ctx, ids)
}

// GONE_BY_WAITING_QUEUE, GONE_PAUSE_BEFORE_WAITING and GONE_PAUSE_BEFORE_READING of the model.
func TestAMarkerWaitsForItsPauses(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		s := w.verifier()
		w.commits(1, true, nil)
		w.wait(dueIdle + driver.PublishedGrace + seenBefore + moment)
		from := s.brings(s.staging, w.marker())
		w.wait(stagingPause - time.Millisecond)
		if len(w.markers(&w.waiting)) != 0 || from.IsAcked() {
			t.Error("it is passed on too soon")
		}
		w.wait(stageInterval)
		passed := w.markers(&w.waiting)
		if len(passed) != 1 || !from.IsAcked() {
			t.Fatalf("%d are in the waiting queue, acked: %v", len(passed), from.IsAcked())
		}
		if len(w.staged()) != 0 {
			t.Error("it has shown something before it came to the waiting queue")
		}
		from = s.brings(s.waiting, passed[0])
		w.wait(waitingPause - time.Millisecond)
		if w.claims != 0 || from.IsAcked() {
			t.Error("it counts too soon")
		}
		w.wait(stageInterval)
		if w.claims != 1 || !from.IsAcked() {
			t.Errorf("%d claims, acked: %v", w.claims, from.IsAcked())
		}
	})
}

// The messages before a marker must have been looked up, or the marker shows nothing.
func TestAMarkerWaitsForTheMessagesBeforeIt(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		s := w.verifier()
		before := s.delivered(s.staging, uuid.New())
		w.wait(time.Millisecond)
		marker := s.brings(s.staging, w.marker())
		w.wait(time.Millisecond)
		after := s.delivered(s.staging, uuid.New())
		w.wait(10 * time.Second)
		if marker.IsAcked() {
			t.Fatal("it is passed on")
		}
		s.carried.looked(before)
		w.wait(stageInterval)
		if !marker.IsAcked() || len(w.markers(&w.waiting)) != 1 {
			t.Error("it is not passed on")
		}
		s.carried.looked(after)

		// A delivery that rests for lack of room is not even unpacked.
		for range 2 {
			s.staging.Deliver(amqp.Delivery{Body: make([]byte, s.staging.MaxBytes)})
		}
		marker = s.brings(s.staging, w.marker())
		w.wait(markerPatience - time.Second)
		if marker.IsAcked() || marker.IsHandedBack() {
			t.Error("it does not wait")
		}
		w.wait(time.Second + stageInterval)
		if marker.IsAcked() || !marker.IsHandedBack() {
			t.Error("it is not handed back")
		}
	})
}

// No copy of such a message can exist.
func TestAMessageNeverPublishedIsStagedAtOnce(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		const rows = 1234
		w.commits(rows, false, nil)
		w.commits(40, false, func(p *amqp.Publishing) { p.Body = bytes.Repeat([]byte("x"), 200<<10) })
		s := w.verifier()
		w.wait(20 * moment)
		if n := len(w.staged()); n != rows+40 {
			t.Errorf("%d are staged", n)
		}
		if n := s.stats.restaged.Load(); n != rows+40 {
			t.Errorf("%d are counted", n)
		}
		if n := len(w.markers(&w.staging)); n != 0 {
			t.Errorf("%d markers", n)
		}
	})
}

// An earlier release had parked such messages. Verifiers must recognize them as carried.
func TestARecordWithoutTheHeaderGetsIt(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		parked := w.commits(2, false, func(p *amqp.Publishing) {
			delete(p.Headers, wire.HeaderCarried)
			p.Body, p.Type, p.Headers["mine"] = []byte("body"), "kind", "value"
		})
		w.verifier()
		w.wait(moment)
		staged := w.staged() // they are carried
		for _, id := range parked {
			if p := staged[id].Message.Publishing; p.Type != "kind" || string(p.Body) != "body" || p.Headers["mine"] != "value" {
				t.Errorf("%s is staged as %+v", id, p)
			}
		}
	})
}

// Otherwise its stage time would move on, further each time.
func TestNothingIsClaimedWhileNothingCanBePublished(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		w.blocked = true
		w.commits(1, false, nil)
		w.commits(1, true, nil)
		s := w.verifier()
		w.wait(time.Minute)
		if w.claims != 0 || len(w.markers(&w.staging)) != 0 {
			t.Error("it is claimed, or a marker is sent")
		}
		if due, overdue, _ := s.stager.state(time.Now()); due != 2 || overdue < 50*time.Second {
			t.Errorf("due: %d, for %v", due, overdue)
		}
		w.block(false)
		w.wait(moment)
		if n := len(w.staged()); n != 1 {
			t.Errorf("%d are staged when it can", n)
		}
	})
}

// A message that the broker refuses delays no other, and is logged once.
func TestARefusedMessageIsLeft(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		var said bytes.Buffer
		w.commits(3, false, nil)
		large := w.commits(1, false, func(p *amqp.Publishing) { p.Type = "large" })[0]
		w.commits(3, false, nil)
		broken := w.commits(1, false, nil)[0]
		w.messages[broken] = []byte("?")
		w.refuse = func(p amqp.Publishing) error {
			if bytes.Contains(p.Body, []byte("large")) || p.Type == "large" {
				return fmt.Errorf("%w: too large", bridge.ErrInvalidMessage)
			}
			return nil
		}
		s := w.verifier()
		s.stager.log = slog.New(slog.NewTextHandler(&said, nil))
		w.wait(time.Hour)
		if n := len(w.staged()); n != 6 {
			t.Errorf("%d are staged, must be 6", n)
		}
		for _, id := range []uuid.UUID{large, broken} {
			if n := strings.Count(said.String(), "message_id="+id.String()); n != 1 {
				t.Errorf("the log names it %d times:\n%s", n, said.String())
			}
		}
		count := func() int {
			_, _, unstageable := s.stager.state(time.Now())
			return unstageable
		}
		if n := count(); n != 2 {
			t.Errorf("%d cannot be staged", n)
		}
		w.refuse = nil // the broker's limit is raised
		for len(w.staged()) == 0 {
			w.wait(time.Minute)
			s.brings(s.waiting, w.marker())
		}
		w.forget(broken)
		w.wait(unstageableFor + time.Minute)
		if n := count(); n != 0 {
			t.Errorf("%d cannot be staged", n)
		}
	})
}

// If a publication fails, the row waits for its next stage time.
func TestAMessageThatCouldNotBeStagedIsDueAgain(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		w.commits(1, false, nil)
		w.refuse = func(amqp.Publishing) error { return errors.New("lost") }
		s := w.verifier()
		w.wait(moment)
		w.mu.Lock()
		w.refuse = nil
		w.mu.Unlock()
		began := time.Now()
		for len(w.staged()) == 0 {
			w.wait(10 * time.Millisecond)
			w.passMarkers(s, s)
			if time.Since(began) > time.Minute {
				t.Fatal("it is not staged")
			}
		}
	})
}

// While the staging queue accepts nothing, few rows move on to a later stage time.
func TestAFullStagingQueueDelaysFewMessages(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		const most = 1000
		w.commits(most, false, nil)
		w.refuse = func(amqp.Publishing) error { return bridge.ErrNacked }
		w.verifier()
		w.wait(10 * time.Minute)
		w.mu.Lock()
		w.refuse = nil
		w.mu.Unlock()
		w.wait(time.Minute)
		if n := len(w.staged()); n < most-claimLimit-60 {
			t.Errorf("%d of %d are staged when it takes messages", n, most)
		}
	})
}

// A look costs little: it goes back a few seconds, and looks are rarer when they take long.
func TestLooksAreCheap(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		s := w.verifier()
		w.wait(time.Minute)
		if n := len(w.looks); n < 80 || n > 110 {
			t.Errorf("%d pages in a minute, and no row was due yet", n)
		}
		w.looks = nil
		s.carried.ever.Store(true)
		w.wait(time.Minute)
		full := w.walks()
		if n := len(w.looks); n < 100 || n > 200 || full < 9 || full > 13 {
			t.Errorf("%d looks in a minute, %d of them full", n, full)
		}
		w.looks, w.lookTakes = nil, time.Second // once, as on a busy machine
		for len(w.looks) == 0 {
			w.wait(100 * time.Millisecond)
		}
		w.looks, w.lookTakes = nil, 0
		w.wait(5 * time.Second)
		if n := len(w.looks); n < 8 {
			t.Errorf("%d looks in the five seconds after a slow one", n)
		}
		w.looks, w.lookTakes = nil, time.Second
		w.wait(10 * time.Minute)
		if n := len(w.looks); n < 32 || n > 44 { // of the recent rows every 21 s, of all every 51 s
			t.Errorf("%d pages of a second in ten minutes", n)
		}
	})
}

// deadEntriesWorld is a ledger whose index has very many deleted entries, as while a transaction is
// open for hours: a statement that reaches them takes long.
type deadEntriesWorld struct {
	*carryingWorld
	deleted time.Time // their stage times end before this time
	takes   time.Duration
}

func (w *deadEntriesWorld) Due(ctx context.Context, after driver.DueRow, limit int) ([]driver.DueRow, time.Time, error) {
	page, at, err := w.carryingWorld.Due(ctx, after, limit)
	if after.StageAt.Before(w.deleted) && (len(page) < limit || page[limit-1].StageAt.After(w.deleted)) {
		select {
		case <-time.After(w.takes):
		case <-ctx.Done():
			return nil, at, ctx.Err()
		}
	}
	return page, at, err
}

// A row that was never published is staged at once if it is recent, and sooner or later if it is
// old.
func TestASlowWalkThroughAllRowsHidesNoRow(t *testing.T) {
	for _, takes := range []time.Duration{4 * time.Second, 40 * time.Second, time.Hour} {
		t.Run(takes.String(), func(t *testing.T) {
			inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
				w.commits(7, false, nil)
				w.wait(48 * time.Hour)
				slow := &deadEntriesWorld{w, w.now(), takes}
				w.wait(time.Hour)
				w.commits(2000, false, nil) // of an outage that has just ended
				w.wait(20 * time.Minute)
				s := w.runs(w.session(slow, newSideCall()))
				// The walk through all rows has to find the slow place.
				began, staged := time.Now(), 0
				for staged < 2007 && time.Since(began) < 20*time.Minute {
					w.wait(time.Second)
					staged += len(w.staged())
				}
				if staged != 2007 {
					t.Fatalf("%d of 2007 old ones are staged", staged)
				}
				w.looks = nil
				for range 100 {
					id, began := w.commits(1, false, nil)[0], time.Now()
					for {
						w.wait(stageInterval)
						if _, ok := w.staged()[id]; ok {
							break
						}
						if time.Since(began) > fullPatience+2*moment {
							t.Fatal("a recent one is not staged")
						}
					}
					w.wait(7 * time.Second)
				}
				full := w.walks()
				if full < 3 || full > 20 || len(w.looks) < 1000 {
					t.Errorf("%d pages, %d walks through all rows begun", len(w.looks), full)
				}
				if s.stats.restaged.Load() != 2107 {
					t.Errorf("%d are staged", s.stats.restaged.Load())
				}
			})
		})
	}
}

// Rows are read page by page, and rows that are gone are forgotten.
func TestCandidatesAreTheRowsOfTheLedger(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		var ids []uuid.UUID
		for range 100 {
			ids = append(ids, w.commits(25, true, nil)...)
			w.wait(20 * time.Millisecond)
		}
		s := w.verifier()
		w.wait(driver.PublishedGrace + moment)
		check := func(want int) {
			t.Helper()
			if n := len(s.stager.rows.candidates); n != want {
				t.Errorf("%d candidates, must be %d", n, want)
			}
		}
		check(len(ids))
		for _, id := range ids[:1200] {
			w.forget(id)
		}
		_ = w.Touch(t.Context(), ids[2400:])
		w.wait(moment + stageInterval)
		check(1200)
		w.wait(time.Minute) // the rows are out of the window, and due again
		check(1300)
		for _, id := range ids {
			w.forget(id)
		}
		w.wait(fullLook + moment)
		check(0)
		if due, overdue, _ := s.stager.state(time.Now()); due != 0 || overdue != 0 {
			t.Errorf("due: %d, for %v", due, overdue)
		}
		w.commits(candidatesLimit+2000, true, nil)
		w.wait(10 * time.Second)
		if n := len(s.stager.rows.candidates); n > candidatesLimit {
			t.Errorf("%d candidates", n)
		}
	})
}

// In a backlog of published messages each look reads a bounded part, and the looks reach its end.
// Messages that were never published are staged meanwhile, wherever they are.
func TestABacklogHidesNothingThatWasNeverPublished(t *testing.T) {
	for name, together := range map[string]bool{"of one stage time": true, "of many stage times": false} {
		t.Run(name, func(t *testing.T) {
			inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
				const half = 6000
				commit := func() {
					for range half / dueLimit {
						w.commits(dueLimit, true, nil)
						if !together {
							w.wait(time.Millisecond)
						}
					}
				}
				commit()
				w.commits(700, false, nil) // of one stage time, amid others
				commit()
				w.wait(time.Minute)
				s := w.verifier()
				w.wait(10 * time.Second)
				if n := len(w.staged()); n != 700 {
					t.Errorf("of 700 amid the backlog %d are staged", n)
				}
				w.commits(10, false, nil)
				w.wait(2 * moment)
				if n := len(w.staged()); n != 10 {
					t.Errorf("of 10 new ones %d are staged", n)
				}
				if n := len(s.stager.rows.candidates); n != candidatesLimit {
					t.Errorf("%d candidates", n)
				}
				w.looks = nil
				w.wait(20 * time.Second)
				if begun := w.walks(); begun < 2 || begun > 4 || len(w.looks) > 400 {
					t.Errorf("%d pages in 20 s, %d walks through all", len(w.looks), begun)
				}

				// When the rows are gone, the candidates are gone too.
				w.mu.Lock()
				clear(w.rows)
				w.mu.Unlock()
				w.wait(2 * fullLook)
				if n := len(s.stager.rows.candidates); n != 0 {
					t.Errorf("%d candidates without rows", n)
				}
			})
		})
	}
}

// While nothing can be published, the rows of unpublished messages are remembered up to a limit.
func TestRowsThatCannotBeStagedAreRememberedUpToALimit(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		const all = candidatesLimit + unpublishedLimit + 3000
		w.blocked, w.lookTakes = true, 10*time.Millisecond
		w.commits(all, false, nil)
		s := w.verifier()
		w.wait(30 * time.Second)
		if n := len(s.stager.rows.candidates); n != candidatesLimit+unpublishedLimit {
			t.Errorf("%d candidates", n)
		}
		w.block(false)
		n, began := 0, time.Now()
		for n < all && time.Since(began) < time.Minute {
			w.wait(stageInterval)
			n += len(w.staged())
		}
		if n != all {
			t.Errorf("%d are staged of %d", n, all)
		}
	})
}

// For example after a failover to a server with another clock.
func TestAClockThatGoesBackHidesNoLoss(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		w.commits(1, true, nil)
		w.wait(time.Hour)
		s := w.verifier()
		w.wait(time.Minute)
		before := w.marker()
		w.mu.Lock()
		w.back = time.Hour / 2
		w.mu.Unlock()
		w.wait(time.Minute)
		s.brings(s.waiting, before)
		w.wait(waitingPause + moment)
		if n := len(w.staged()); n != 0 {
			t.Error("a marker from before the clock has gone back shows a loss")
		}
		s.brings(s.waiting, w.marker())
		w.wait(waitingPause + moment)
		if n := len(w.staged()); n != 1 {
			t.Errorf("%d are staged again", n)
		}
		w.commits(1, false, nil)
		w.wait(moment)
		if n := len(w.staged()); n != 1 {
			t.Errorf("%d are staged that were never published", n)
		}
	})
}

// A marker is no message: it is never forwarded, and not counted. A message that only looks like a
// marker goes to the dead queue.
func TestAMarkerIsNoMessage(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		s := w.verifier()
		marker := s.brings(s.staging, w.marker())
		if s.staging.Messages() != 0 {
			t.Error("it counts as held")
		}
		w.wait(stagingPause + moment)
		counted := s.stats.forwarded.Load() + s.stats.dropped.Load() + s.stats.deadLettered.Load() + s.stats.setAside.Load() + s.stats.restaged.Load()
		if !marker.IsAcked() || counted != 0 || len(s.toLookUp.Take(10)) != 0 {
			t.Errorf("acked: %v, counted: %d", marker.IsAcked(), counted)
		}
		ordered := orderedConsumer(1 << 20)
		for reason, strange := range map[string]struct {
			consumer *consume.Consumer
			marker   amqp.Publishing
		}{
			wire.DeadForeign:   {s.staging, wire.Marker{Ledger: uuid.New(), Look: time.Now()}.Publishing()},
			wire.DeadMalformed: {s.waiting, amqp.Publishing{Headers: amqp.Table{wire.HeaderMarker: "?"}}},
			"":                 {ordered, w.marker()},
		} {
			s.brings(strange.consumer, strange.marker)
			dead := unsent(s)
			if len(dead) != 1 || dead[0].purpose != deadLetter || reason != "" && dead[0].message.why.code != reason {
				t.Errorf("%q: it is not dead-lettered: %+v", reason, dead)
			}
		}
		s.stager = nil // for an own table
		if marker := s.brings(s.staging, w.marker()); !marker.IsAcked() {
			t.Error("where no row carries a message it is not acked")
		}
	})
}

// Delayed messages are staged within a second, and not before their time. This includes the first
// one that a verifier sees, and one among many others that wait.
func TestADelayedMessageIsStagedInItsSecond(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		const many = 20
		first := w.now().Add(time.Hour)
		times := make(map[uuid.UUID]time.Time)
		for i, id := range w.delays(many, first, 13*time.Second+7*time.Millisecond) {
			times[id] = first.Add(time.Duration(i) * (13*time.Second + 7*time.Millisecond))
		}
		w.delays(10_000, first.Add(24*time.Hour), time.Millisecond)
		w.verifier()
		w.wait(59 * time.Minute)
		if n := len(w.staged()); n > 0 {
			t.Fatalf("%d messages are staged before their time", n)
		}
		seen := make(map[uuid.UUID]bool)
		for len(seen) < many && w.now().Before(first.Add(time.Hour)) {
			w.wait(10 * time.Millisecond)
			for id := range w.staged() {
				if late := w.now().Sub(times[id]); !seen[id] && (late < 0 || late > time.Second) {
					t.Errorf("message %s is staged after %v", id, late)
				}
				seen[id] = true
			}
		}
		if len(seen) != many {
			t.Errorf("%d messages are staged, must be %d", len(seen), many)
		}
	})
}
