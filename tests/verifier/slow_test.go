package verifier_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// longSettles reports each settle that waits for as long as the verifier may, as it does for a
// message whose transaction has been open for some time.
type longSettles struct {
	driver.Ledger
	begun chan uuid.UUID
}

func (l longSettles) Settle(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, driver.Instance, error) {
	if wait > stage.Patience/2 {
		select {
		case l.begun <- id:
		default: // no test reads so many
		}
	}
	return l.Ledger.Settle(ctx, id, wait)
}

// Here a settler that waits to the end waits for minutes. Half of the settlers must be left to
// fresh messages, and a lookup must find the message of another slow transaction that commits.
func TestSettlersThatWaitForMinutesKeepNoOtherMessageWaiting(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	slowQueue, queue := s.Queue("slow", nil), s.Queue("target", nil)
	const settlers, slow = 4, 50
	ledger := longSettles{s.Ledger, make(chan uuid.UUID, 10*slow)}
	s.Ledger = ledger
	v := s.Verify(verifier.Options{Settlers: settlers, SettleWait: 2 * stage.Patience, Patience: 2 * stage.Patience})
	open := make(map[uuid.UUID]*sql.Tx)
	for range slow {
		tx, ids := s.Begin(stage.To(slowQueue, "slow"))
		open[ids[0]] = tx
	}
	commit := func(id uuid.UUID) {
		t.Helper()
		if err := open[id].Commit(); err != nil {
			t.Fatal(err)
		}
		delete(open, id)
	}
	var settled []uuid.UUID
	for range settlers / 2 {
		settled = append(settled, servertest.Next(t, "settles of slow ones", ledger.begun))
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
	if n := len(ledger.begun); n > 0 {
		t.Errorf("%d settlers wait to the end, beside half of them", n)
	}
	if n := s.Depth(slowQueue); n != 0 {
		t.Errorf("%d messages of open transactions at the target", n)
	}
	for id := range open {
		if id == settled[0] || id == settled[1] {
			continue
		}
		commit(id)
		if d := s.Receive(slowQueue, 1)[0]; d.MessageId != id.String() {
			t.Errorf("got %s", d.MessageId)
		}
		break
	}
	for id := range open {
		commit(id)
	}
	s.Receive(slowQueue, slow-1)
	s.Eventually("the rolled-back ones are dropped", func() bool { return v.Stats().Dropped == rounds })
	if n := v.Stats().Sessions; n != 1 {
		t.Errorf("%d sessions", n)
	}
}
