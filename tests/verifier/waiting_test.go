package verifier_test

import (
	"context"
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// A transaction with far more messages than a verifier may hold stays open, and so do many small
// ones. All other messages pass. When a small one has committed, its message comes within a round
// of the waiting queue. (Package verifier's tests bound the duration of a round.)
func TestSlowTransactionsDelayTheirOwnMessagesOnly(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	slowQueue, queue := s.Queue("slow", nil), s.Queue("target", nil)
	v := s.Verify(verifier.Options{Prefetch: 160, Settlers: 4})
	const big = 1000 // the waiting queue is passed through some 80 at a time
	open, _ := s.Begin(some(slowQueue, big)...)
	var small []*sql.Tx
	for range 30 {
		tx, _ := s.Begin(stage.To(slowQueue, "small"))
		small = append(small, tx)
	}
	expectAll(t, s, queue, goodBatch(s, queue, 2000))
	if n := s.Depth(slowQueue); n != 0 {
		t.Fatalf("%d messages of open transactions at the target", n)
	}
	// The small ones end while the big one is still open, and pass it too.
	before := v.Stats().SetAside
	for _, tx := range small {
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	s.Receive(slowQueue, len(small))
	if behind := v.Stats().SetAside - before; behind > 4*big {
		t.Errorf("%d of an open transaction were set aside %d times before the last message behind them came", big, behind)
	}
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	s.Receive(slowQueue, big)
	if got := v.Stats(); got.Dropped != 0 || got.DeadLettered != 0 || got.Sessions != 1 {
		t.Errorf("stats %+v", got)
	}
}

// A lock timeout is no outcome (rule 3 of package bridge).
func TestTransactionOpenForManyLockTimeoutsIsNotDropped(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	ledger := &countingLedger{Ledger: s.Ledger, stillOpen: make(chan struct{}, 1000)}
	s.Ledger = ledger
	v := s.Verify(verifier.Options{SettleWait: 20 * time.Millisecond, Settlers: 2})
	tx, ids := s.Begin(stage.To(queue, "x"))
	for range 20 {
		servertest.Next(t, "a lock time-out", ledger.stillOpen)
	}
	if n := s.Depth(queue); n != 0 {
		t.Errorf("%d messages at the target while the transaction is open", n)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if d := s.Receive(queue, 1)[0]; d.MessageId != ids[0].String() {
		t.Errorf("got %s", d.MessageId)
	}
	if n := v.Stats().Dropped; n != 0 {
		t.Errorf("%d dropped", n)
	}
}

// countingLedger reports every settle that found the transaction still open.
type countingLedger struct {
	driver.Ledger
	stillOpen chan struct{}
}

func (l *countingLedger) Settle(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, driver.Instance, error) {
	outcome, from, err := l.Ledger.Settle(ctx, id, wait)
	if err == nil && outcome == driver.StillOpen {
		select {
		case l.stillOpen <- struct{}{}:
		default:
		}
	}
	return outcome, from, err
}

// A full target is retried, and holds up no other. It has no queues beside it that could get copies
// (Options.Copies), so its messages wait, however long.
func TestFullTargetHoldsUpItselfAlone(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	full := s.Queue("full", amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	queue := s.Queue("target", nil)
	v := s.Verify(verifier.Options{Prefetch: 100, Patience: 500 * time.Millisecond, Copies: 1})
	fullIDs := goodBatch(s, full, 400) // four times as many as a verifier may hold
	expectAll(t, s, queue, goodBatch(s, queue, 400))
	expectAll(t, s, full, fullIDs) // consuming makes room: all arrive
	if n := v.Stats(); n.DeadLettered != 0 || n.Sessions != 1 {
		t.Errorf("stats %+v", n)
	}
}

// Memory is bounded by counts: however many messages are staged, a verifier holds no more than
// its prefetch. The rest stays available to other consumers.
func TestUnackedMessagesAreBounded(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	const staged, prefetch = 500, 50
	stuck := &stuckLedger{Ledger: s.Ledger, release: make(chan struct{})}
	defer stuck.free()
	s.Ledger = stuck
	s.StageSingly()
	ids := goodBatch(s, queue, staged)
	stuck.ids = ids
	s.Verify(verifier.Options{Prefetch: prefetch})
	s.Eventually("the verifier holds its prefetch", func() bool { return s.Depth(s.Topology.Queue) <= staged-prefetch })
	left := 0
	var last amqp.Delivery
	for {
		const autoAck = false
		d, ok, err := s.Channel.Get(s.Topology.Queue, autoAck)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		left, last = left+1, d
	}
	if left != staged-prefetch {
		t.Errorf("%d messages were left to others, must be %d", left, staged-prefetch)
	}
	if left > 0 {
		const multiple, requeue = true, true
		if err := last.Nack(multiple, requeue); err != nil {
			t.Fatal(err)
		}
	}
	stuck.free()
	expectAll(t, s, queue, ids)
}

// stuckLedger blocks the lookup of these IDs until it is freed. The proof comes before and
// passes.
type stuckLedger struct {
	driver.Ledger
	ids     map[string]bool
	release chan struct{}
}

func (l *stuckLedger) Committed(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, driver.Instance, error) {
	if slices.ContainsFunc(ids, func(id uuid.UUID) bool { return l.ids[id.String()] }) {
		select {
		case <-l.release:
		case <-ctx.Done():
			return nil, "", ctx.Err()
		}
	}
	return l.Ledger.Committed(ctx, ids)
}

func (l *stuckLedger) free() {
	select {
	case <-l.release:
	default:
		close(l.release)
	}
}
