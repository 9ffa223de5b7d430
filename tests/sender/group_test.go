package sender_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// together runs n transactions that stage a message each while the broker's
// answers are held back, calls release when all have been recorded, and returns
// their IDs and what SendTx said.
func together(t *testing.T, s *stage.Stage, broker *bridge.Broker, n int, release func(*sender.Sender)) (ids []uuid.UUID, errs []error) {
	t.Helper()
	var recorded, done sync.WaitGroup
	recorded.Add(n)
	r := &recorder{Recorder: s.Ledger, after: recorded.Done}
	shared := newSender(t, r, broker, stage.Patience)
	ids, errs = make([]uuid.UUID, n), make([]error, n)
	for i := range n {
		tx := begin(t, s.DB)
		done.Go(func() {
			var sent []uuid.UUID
			m := stage.To("target", "body")
			m.ID = uuid.New()
			if sent, errs[i] = shared.SendTx(t.Context(), bridge.SQL(tx), m); errs[i] == nil {
				errs[i] = tx.Commit()
			}
			if ids[i] = m.ID; errs[i] == nil && sent[0] != m.ID {
				t.Errorf("SendTx returned %v for %s", sent, m.ID)
			}
		})
	}
	recorded.Wait()
	r.after = nil
	release(shared)
	done.Wait()
	return ids, errs
}

func TestTransactionsOfOneMomentTravelTogetherAndAreJudgedAlone(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	s.Queue("target", nil)
	valve, broker := throughValve(t, s)
	before := s.Depth("staging")
	valve.HoldReplies()
	ids, errs := together(t, s, broker, 40, func(*sender.Sender) { valve.Release() })
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if staged := s.Depth("staging") - before; staged >= len(ids)/2 {
		t.Errorf("%d messages carry %d transactions", staged, len(ids))
	}
	settled(t, s, "target", ids...)
}

func TestEveryTransactionOfAShipmentThatFailsHearsOfItsOwnMessage(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	valve, broker := throughValve(t, s)
	if _, err := s.Channel.QueueDelete("staging", false, false, false); err != nil {
		t.Fatal(err)
	}
	valve.HoldReplies()
	ids, errs := together(t, s, broker, 20, func(*sender.Sender) { valve.Release() })
	for i, err := range errs {
		var failed *bridge.PublishError
		if !errors.As(err, &failed) || failed.ID != ids[i] || failed.Target.RoutingKey != "staging" || !errors.Is(err, bridge.ErrReturned) {
			t.Errorf("message %s: %v", ids[i], err)
		}
	}
}

func TestACallerThatGivesUpTakesNobodyWithIt(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	s.Queue("target", nil)
	valve, broker := throughValve(t, s)
	valve.HoldReplies()
	ids, errs := together(t, s, broker, 10, func(shared *sender.Sender) {
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		tx := begin(t, s.DB)
		if _, err := shared.SendTx(ctx, bridge.SQL(tx), messages("target", 1)...); !errors.Is(err, bridge.ErrUnconfirmed) {
			t.Errorf("a caller that gave up: %v", err)
		}
		_ = tx.Rollback()
		valve.Release()
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	settled(t, s, "target", ids...)
}

// A shipment that has queued behind another has its whole time: confirms that take more
// than half of it are in time for all.
func TestTheClockOfAShipmentStartsWhenItIsShipped(t *testing.T) {
	t.Parallel()
	const limit, confirm = 5 * time.Second, 3 * time.Second
	for name, opts := range map[string]sender.Options{
		"Timeout":   {Timeout: limit},
		"ParkAfter": {Parking: sender.ParkOnOutage, ParkAfter: limit, Timeout: stage.Patience},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, stage.Postgres)
			s.Queue("target", nil)
			valve, broker := throughValve(t, s)
			opts.Queue, opts.Logger = "staging", stage.Logger(t)
			sndr, err := sender.New(s.Ledger, broker, &opts)
			if err != nil {
				t.Fatal(err)
			}
			valve.Slow(confirm / 2) // in each direction
			var done sync.WaitGroup
			var ids [6]uuid.UUID
			for i := range ids { // the first travels alone, the others behind it
				tx := begin(t, s.DB)
				done.Go(func() {
					sent, err := sndr.SendTx(t.Context(), bridge.SQL(tx), messages("target", 1)...)
					if err == nil {
						err = tx.Commit()
					}
					if err != nil {
						t.Errorf("transaction %d: %v", i, err)
						return
					}
					ids[i] = sent[0]
				})
			}
			done.Wait()
			if t.Failed() {
				return
			}
			if n, err := s.Ledger.CountParked(t.Context(), 10); n != 0 || err != nil {
				t.Errorf("%d messages are parked (%v)", n, err)
			}
			settled(t, s, "target", ids[:]...)
		})
	}
}

// A caller whose context has ended has its message back: the sender reads it no more.
func TestWhatIsOnItsWayIsACopy(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	s.Queue("target", nil)
	valve, broker := throughValve(t, s)
	before := len(s.Staged())
	valve.HoldReplies()
	var ids []uuid.UUID
	shared := newSender(t, s.Ledger, broker, stage.Patience)
	first := begin(t, s.DB)
	ended := make(chan error)
	go func() {
		var err error
		ids, err = shared.SendTx(t.Context(), bridge.SQL(first), messages("target", 1)...)
		ended <- err
	}()
	s.WaitDepth("staging", before+1) // and its confirm does not come

	m := stage.To("target", "as it was")
	m.ID = uuid.New()
	inner := amqp.Table{"k": "as it was"}
	m.Publishing.Headers = amqp.Table{"inner": inner}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	gone := begin(t, s.DB)
	if _, err := shared.SendTx(ctx, bridge.SQL(gone), m); !errors.Is(err, bridge.ErrUnconfirmed) {
		t.Errorf("error %v", err)
	}
	_ = gone.Rollback()
	copy(m.Publishing.Body, "something")
	inner["k"] = "something else"
	valve.Release()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	commit(t, first)
	s.WaitDepth("staging", before+2)
	last := s.Staged()[before+1]
	if got, _ := last.Headers["inner"].(amqp.Table); last.MessageId != m.ID.String() || string(last.Body) != "as it was" || got["k"] != "as it was" {
		t.Errorf("staged %s with %q and %v", last.MessageId, last.Body, got)
	}
	settled(t, s, "target", ids...)
}
