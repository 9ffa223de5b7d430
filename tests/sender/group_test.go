package sender_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/uuid"

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
			if sent, errs[i] = shared.SendTx(t.Context(), tx, m); errs[i] == nil {
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
		if _, err := shared.SendTx(ctx, tx, messages("target", 1)...); !errors.Is(err, bridge.ErrUnconfirmed) {
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
