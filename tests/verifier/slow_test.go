package verifier_test

import (
	"context"
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// watchedLedger reports every lookup; it reports a waiting lookup when that begins.
type watchedLedger struct {
	driver.Ledger
	settling chan settling
	lookedUp chan []uuid.UUID
}

type settling struct {
	id   uuid.UUID
	wait time.Duration
}

func watched(s *stage.Stage) *watchedLedger {
	l := &watchedLedger{Ledger: s.Ledger, settling: make(chan settling, 10_000), lookedUp: make(chan []uuid.UUID, 10_000)}
	s.Ledger = l
	return l
}

func (l *watchedLedger) Settle(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, driver.Instance, error) {
	trySend(l.settling, settling{id, wait})
	return l.Ledger.Settle(ctx, id, wait)
}

func (l *watchedLedger) Committed(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, driver.Instance, error) {
	found, from, err := l.Ledger.Committed(ctx, ids)
	trySend(l.lookedUp, slices.Clone(ids))
	return found, from, err
}

// trySend does not block: after 10,000 lookups no test reads the channel any more.
func trySend[T any](c chan T, what T) {
	select {
	case c <- what:
	default:
	}
}

// await returns the next value for which is returns true.
func await[T any](t *testing.T, c chan T, what string, is func(T) bool) T {
	t.Helper()
	timeout := time.After(stage.Patience)
	for {
		select {
		case one := <-c:
			if is(one) {
				return one
			}
		case <-timeout:
			t.Fatalf("not in time: %s", what)
		}
	}
}

// waitsToTheEnd reports whether a settle waits for as long as the verifier may, as it does for a
// message whose transaction has been open for some time.
func waitsToTheEnd(one settling) bool { return one.wait > stage.Patience/2 }

// The only settler waits for minutes for a transaction that stays open. So a lookup must find the
// messages of another transaction, which has been open for some time too.
func TestTheMessagesOfASlowTransactionNeedNoSettlerEach(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	ledger := watched(s)
	queue := s.Queue("target", nil)
	v := s.Verify(verifier.Options{Settlers: 1, SettleWait: stage.Patience, Patience: stage.Patience})
	open, _ := s.Begin(stage.To(queue, "stays open"))
	await(t, ledger.settling, "the settler waits to the end", waitsToTheEnd)

	tx, ids := s.Begin(stage.To(queue, "a"), stage.To(queue, "b"))
	for range 20 { // fresh ones are looked up every 8 ms, and are slow after 100 ms
		await(t, ledger.lookedUp, "a lookup of both", func(asked []uuid.UUID) bool {
			return slices.Contains(asked, ids[0]) && slices.Contains(asked, ids[1])
		})
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	for _, d := range s.Receive(queue, len(ids)) {
		if d.MessageId != ids[0].String() && d.MessageId != ids[1].String() {
			t.Errorf("got %s", d.MessageId)
		}
	}
	if got := v.Stats(); got.Dropped != 0 || got.Sessions != 1 {
		t.Errorf("stats %+v", got)
	}
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	s.Receive(queue, 1)
}

// Here a settler that waits to the end waits for minutes. Half of the settlers must be left to
// fresh messages.
func TestAFreshMessageWaitsForNoSlowMessage(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	ledger := watched(s)
	slowQueue, queue := s.Queue("slow", nil), s.Queue("target", nil)
	const settlers, slow = 4, 50
	v := s.Verify(verifier.Options{Settlers: settlers, SettleWait: stage.Patience, Patience: stage.Patience})
	var open []*sql.Tx
	for range slow {
		tx, _ := s.Begin(stage.To(slowQueue, "slow"))
		open = append(open, tx)
	}
	for range settlers / 2 {
		await(t, ledger.settling, "settles of slow ones", waitsToTheEnd)
	}
	s.Eventually("all wait", func() bool { return v.State().Waiting.Transaction == slow })
	const rounds = 5
	for range rounds {
		s.RollBack(stage.To(queue, "rolled back"))
		id := s.Commit(stage.To(queue, "fresh"))[0]
		if d := s.Receive(queue, 1)[0]; d.MessageId != id.String() {
			t.Errorf("got %s", d.MessageId)
		}
	}
	for len(ledger.settling) > 0 {
		if one := <-ledger.settling; waitsToTheEnd(one) {
			t.Errorf("more than half of the settlers wait to the end: for %s too", one.id)
		}
	}
	if n := s.Depth(slowQueue); n != 0 {
		t.Errorf("%d messages of open transactions at the target", n)
	}
	for _, tx := range open {
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	s.Receive(slowQueue, slow)
	s.Eventually("the rolled-back ones are dropped", func() bool { return v.Stats().Dropped == rounds })
	if n := v.Stats().Sessions; n != 1 {
		t.Errorf("%d sessions", n)
	}
}
