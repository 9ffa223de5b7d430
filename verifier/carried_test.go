package verifier

import (
	"context"
	"errors"
	"log/slog"
	"slices"
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
	"github.com/twoqueue/twoqueue/verifier/internal/forward"
)

// carryingSession returns a session without servers.
func carryingSession(ledger driver.Ledger) *session {
	opts, _ := (&Options{Logger: slog.New(slog.DiscardHandler)}).withDefaults()
	s := testSession(newResources(ledger, nil, opts))
	s.staging, s.waiting = testConsumer("twoqueue", 3000), testConsumer("twoqueue.waiting", 1500)
	s.carried = newCarriedSet(3000, 64<<20)
	return s
}

// delivered returns a carried message that a consumer has just received. If a copy is here, it
// joins that.
func (s *session) delivered(c *consume.Consumer, id uuid.UUID) *message {
	u := c.Deliver(amqp.Delivery{})
	u.CountMessages(1)
	m := &message{unacked: u, received: time.Now(), delivery: amqp.Delivery{MessageId: id.String(), Body: []byte("body")}}
	m.staged = wire.Staged{Carried: true, Message: bridge.Message{ID: id, RoutingKey: "target"}}
	if s.carried.take(m) {
		s.toLookUp.Add(m)
	}
	return m
}

// A copy of a held message shares its end, or is judged by itself.
func TestACopySharesTheEndOfTheMessageThatItHasJoined(t *testing.T) {
	const isAcked, isJudged, isBack = "acked", "judged", "handed back"
	for name, c := range map[string]struct {
		ends                     func(s *session, m *message)
		fromStaging, fromWaiting string
	}{
		"forwarded": {func(s *session, m *message) {
			s.committed(m)
			s.publicationEnded(m.toTarget(), forward.Placed, nil)
			s.done(s.toForget.Take(10)...)
		}, isAcked, isAcked},
		"dead-lettered": {func(s *session, m *message) {
			s.committed(m)
			s.publicationEnded(m.toDead("dead", time.Now()), forward.Placed, nil)
			s.done(s.toForget.Take(10)...)
		}, isAcked, isAcked},
		"dead-lettered, but not judged": {func(s *session, m *message) {
			s.publicationEnded(m.toDead("dead", time.Now()), forward.Placed, nil)
		}, isJudged, isJudged},
		"dropped": {func(s *session, m *message) { s.drop(m) }, isJudged, isJudged},
		// A copy from the waiting queue may be the one that was put there.
		"set aside": {func(s *session, m *message) {
			s.publicationEnded(m.toWaiting("waiting", time.Now()), forward.Placed, nil)
		}, isAcked, isJudged},
		"handed back": {func(s *session, m *message) {
			m.unacked.Back.Store(true)
			s.release(m)
		}, isBack, isBack},
		"too large for the broker": {func(s *session, m *message) {
			m.unacked.Stranded.Store(true)
			s.release(m)
		}, isJudged, isJudged},
	} {
		s := carryingSession(nil)
		id := uuid.New()
		first := s.delivered(s.staging, id)
		copies := map[*message]string{s.delivered(s.staging, id): c.fromStaging, s.delivered(s.waiting, id): c.fromWaiting}
		if got := s.toLookUp.Take(10); !slices.Equal(got, []*message{first}) {
			t.Fatalf("%s: %d messages are judged, must be the first", name, len(got))
		}
		c.ends(s, first)
		judged := s.toLookUp.Take(10)
		want := 0
		for m, end := range copies {
			if end == isJudged {
				want = 1 // a second copy has joined it
			}
			if m.unacked.IsAcked() != (end == isAcked) || m.unacked.IsHandedBack() != (end == isBack) {
				t.Errorf("%s: a copy from %q is acked: %v, handed back: %v; it must be %s", name, m.unacked.From.Queue, m.unacked.IsAcked(), m.unacked.IsHandedBack(), end)
			}
		}
		if len(judged) != want {
			t.Errorf("%s: %d copies are judged, must be %d", name, len(judged), want)
		}
		for range 2 { // the second one was judged like the first
			for _, m := range judged {
				s.drop(m)
			}
			judged = s.toLookUp.Take(10)
		}
		if len(s.carried.held) != 0 || s.carried.joined != 0 || s.carried.bytes != 0 {
			t.Errorf("%s: still held: %v, joined %d, %d bytes", name, s.carried.held, s.carried.joined, s.carried.bytes)
		}
	}
}

// Rule 4 of package bridge: the row is deleted after the target's confirm, however late that is.
func TestACarriedRowStaysUntilTheConfirm(t *testing.T) {
	inCarryingWorld(t, func(t *testing.T, w *carryingWorld) {
		deleted := 0
		s := w.session(undeletableWorld{w, func(_ context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
			deleted += len(ids)
			return nil, nil
		}}, newSideCall())
		m := s.delivered(s.staging, w.commits(1, true, nil)[0])
		s.forwarder.Hold(m.staged.Target())
		s.committed(m)
		w.wait(time.Minute)
		if deleted > 0 || len(s.toForget.Take(10)) > 0 || m.unacked.IsAcked() {
			t.Error("a row is deleted before the confirm, or its message acked")
		}
		to := s.forwarder.RemoveHeld(anyPublication)
		if len(to) != 1 {
			t.Fatalf("%d messages are forwarded", len(to))
		}
		s.publicationEnded(publicationOf(to[0]), forward.Placed, nil)
		if forgotten := s.toForget.Take(10); !slices.Equal(forgotten, []*message{m}) {
			t.Errorf("after the confirm %d rows are to be deleted", len(forgotten))
		}
	})
}

// Only carried messages without an order key join others.
func TestOtherMessagesJoinNone(t *testing.T) {
	s := carryingSession(nil)
	id := uuid.New()
	ordered := orderedConsumer(1 << 20)
	for name, change := range map[string]func(*message){
		"not carried":         func(m *message) { m.staged.Carried = false },
		"of an ordered queue": func(m *message) { m.unacked.From = ordered },
	} {
		for range 2 {
			m := &message{unacked: &consume.Unacked{From: s.staging}, staged: wire.Staged{Carried: true, Message: bridge.Message{ID: id}}}
			change(m)
			if !s.carried.take(m) {
				t.Errorf("%s: it has joined another", name)
			}
		}
	}
	if len(s.carried.held) != 0 {
		t.Error("they count as held")
	}
	var none *carriedSet // for an own table
	if !none.take(&message{staged: wire.Staged{Carried: true}}) {
		t.Error("a message joins another where no row carries one")
	}
}

// Copies of one message must not fill the room of all others.
func TestCopiesThatHaveJoinedAreBounded(t *testing.T) {
	s := carryingSession(nil)
	s.carried = newCarriedSet(40, 1<<20)
	id := uuid.New()
	for range 20 {
		s.delivered(s.staging, id)
	}
	if got := len(s.toLookUp.Take(100)); got != 10 {
		t.Errorf("%d of 20 are judged by themselves, must be 10", got)
	}
	s.carried = newCarriedSet(4000, 4*4*len("body"))
	for range 20 {
		s.delivered(s.staging, id)
	}
	if got := len(s.toLookUp.Take(100)); got != 16 {
		t.Errorf("%d of 20 are judged by themselves, must be 16", got)
	}
}

// A group that is handed back at the end must not bring a member twice.
func TestTheJoinedMembersOfATornGroupAreSetAsideAtTheEnd(t *testing.T) {
	s := carryingSession(nil)
	id := uuid.New()
	s.delivered(s.staging, id)
	twin := s.delivered(s.staging, id)
	twin.unacked.Split.Store(true)
	if n := s.setAsideSplitGroups(); n != 1 {
		t.Errorf("%d are set aside, must be the copy", n)
	}
	if n := s.setAsideSplitGroups(); n != 0 || s.carried.joined != 0 {
		t.Errorf("%d are set aside again", n)
	}
}

// A touchLedger records the IDs of Touch.
type touchLedger struct {
	driver.Ledger
	answer func(ctx context.Context) error // nil: success

	mu      sync.Mutex
	touched []uuid.UUID
}

func (l *touchLedger) Identity() uuid.UUID { return uuid.UUID{1} }

func (l *touchLedger) Touch(ctx context.Context, ids []uuid.UUID) error {
	if l.answer != nil {
		if err := l.answer(ctx); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.touched = append(l.touched, ids...)
	return nil
}

func (l *touchLedger) times(id uuid.UUID) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, other := range l.touched {
		if other == id {
			n++
		}
	}
	return n
}

// GONE_TOUCH of the model: a committed message that is held has a stage time in the future.
func TestTheStageTimeOfAHeldMessageIsMovedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := &touchLedger{}
		s := carryingSession(ledger)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.touchHeld(ctx)
		open := s.delivered(s.staging, uuid.New())
		inFlight := s.delivered(s.staging, uuid.New())
		slow := s.delivered(s.staging, uuid.New())
		slow.carried.target.RoutingKey = "other"
		s.committed(inFlight, slow)
		wait := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		wait(2 * touchInterval)
		if ledger.times(inFlight.staged.ID) != 0 {
			t.Error("a message that was just judged is touched")
		}
		s.forwarder.Hold(inFlight.staged.Target())
		wait(touchInterval + time.Millisecond)
		if n := ledger.times(inFlight.staged.ID); n != 1 {
			t.Errorf("it is touched %d times once its target is held", n)
		}
		if ledger.times(slow.staged.ID) != 0 {
			t.Error("so is one for another target")
		}
		wait(touchAfter - 2*touchInterval)
		if n := ledger.times(slow.staged.ID); n != 1 {
			t.Errorf("one for another target is touched %d times in %v", n, touchAfter)
		}
		// Its stage time is 10 s in the future, then about as far as the message is old.
		for _, c := range []struct {
			age   time.Duration
			times int
		}{{4 * time.Second, 1}, {6 * time.Second, 2}, {14 * time.Second, 3}, {time.Minute, 8}, {time.Hour, 22}} {
			wait(c.age - time.Since(inFlight.received))
			if n := ledger.times(inFlight.staged.ID); n < c.times-2 || n > c.times+2 || c.age < 10*time.Second && n != c.times {
				t.Errorf("it is touched %d times after %v, must be about %d", n, c.age, c.times)
			}
		}
		if ledger.times(open.staged.ID) != 0 {
			t.Error("a message is touched that was not judged: on MySQL that waits for its sender")
		}
		s.drop(inFlight)
		before := ledger.times(inFlight.staged.ID)
		wait(time.Hour)
		if ledger.times(inFlight.staged.ID) != before {
			t.Error("a message that is done is touched")
		}
	})
}

// A message is touched before it is set aside, and is also set aside if that fails.
func TestAMessageIsTouchedBeforeItIsSetAside(t *testing.T) {
	for name, c := range map[string]struct {
		answer  func(context.Context) error
		touched int
		within  time.Duration
	}{
		"it works": {nil, 1, 0},
		"it fails": {func(context.Context) error { return errors.New("no right") }, 0, 0},
		"it hangs": {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, 0, touchPatience},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ledger := &touchLedger{answer: c.answer}
				s := carryingSession(ledger)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() { _ = s.touchAndSetAside(ctx) }()
				m, open := s.delivered(s.staging, uuid.New()), s.delivered(s.staging, uuid.New())
				s.committed(m)
				unsent(s)
				for range 2 { // the second time it is set aside at once
					s.setAside(open)
					s.setAside(m)
					if n := s.touching.Value() + s.forwarder.Moving().Value(); n != 2 {
						t.Error("a drain would overlook one of them")
					}
					time.Sleep(c.within)
					synctest.Wait()
					if n := s.forwarder.Moving().Value(); n != 2 || len(unsent(s)) != 2 || s.touching.Value() != 0 {
						t.Fatalf("%d are set aside, must be 2", n)
					}
					if n := ledger.times(m.staged.ID); n != c.touched {
						t.Errorf("it was touched %d times, must be %d", n, c.touched)
					}
					if ledger.times(open.staged.ID) != 0 {
						t.Error("a message that was not judged is touched")
					}
					c.within = 0
				}
				at, told := m.toWaiting("waiting", time.Now()).Publishing.Headers[wire.HeaderTouchedAt]
				if told != (c.touched > 0) {
					t.Errorf("the copy in the waiting queue has the time of a touch: %v", at)
				}
			})
		})
	}
}

// The verifier that takes a message from the waiting queue continues from the last Touch.
func TestATouchCountsInTheWaitingQueue(t *testing.T) {
	s := carryingSession(nil)
	now := time.Now()
	for name, c := range map[string]struct {
		touched, staged time.Time
		due             bool
	}{
		"never":                   {time.Time{}, now, true},
		"a moment ago":            {now.Add(-4 * time.Second), now.Add(-5 * time.Second), false},
		"long ago":                {now.Add(-6 * time.Second), now.Add(-8 * time.Second), true},
		"long ago, an old row":    {now.Add(-2 * time.Minute), now.Add(-time.Hour), false},
		"in the future":           {now.Add(time.Hour), now, true},
		"too long ago at any age": {now.Add(-6 * time.Minute), now.Add(-24 * time.Hour), true},
	} {
		m := &message{unacked: &consume.Unacked{From: s.waiting}, received: now, touchedAt: c.touched}
		m.staged = wire.Staged{Carried: true, StagedAt: c.staged, Message: bridge.Message{ID: uuid.New()}}
		s.carried.take(m)
		if due := m.carried.touchDue(now); due != c.due {
			t.Errorf("touched %s: a Touch is due: %v", name, due)
		}
	}
}
