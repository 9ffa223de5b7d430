package faults

import (
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/faults/world"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// carrying returns a stage with two verifiers and a receiver. All its senders carry their messages.
func carrying(t *testing.T) *stage {
	t.Helper()
	if testing.Short() {
		t.Skip("plays with processes")
	}
	s := newStage(t, func(c *world.Config) {
		c.Carry, c.Pause = []sender.Carry{sender.CarryAlways}, 50*time.Millisecond
	})
	for range 2 {
		s.await("a verifier", s.AddVerifier().Await("session started"))
	}
	s.AddReceiver()
	return s
}

// placed waits until the senders have committed that many more orders.
func (s *stage) placed(more int) {
	s.t.Helper()
	before := -1
	s.Must("wait", s.AwaitCount("orders are placed", s.Shop(), `SELECT count(*) FROM orders`, func(n int) bool {
		if before < 0 {
			before = n
		}
		return n >= before+more
	}))
}

// recovery bounds the time from a sender's death until a message arrives that the broker never got.
// Its row is due after 1 s, and a marker then takes 3.4 to 6.5 s through the queues on two busy
// cores. The rest is for a message that is not staged at its first stage time. The test logs the
// measured time.
const recovery = 15 * time.Second

// The broker loses the messages that a sender published last, and the sender is killed. Verifiers
// stage the messages from their rows. A busy machine slows each step of a marker, each by at most
// the time that a single message of another sender takes.
func TestMessagesThatASenderCouldNotPublishArriveAfterItsDeath(t *testing.T) {
	t.Parallel()
	s := carrying(t)
	const deaths, some, steps = 3, 60, 8
	dying := s.AddSender(6, 1)
	for range deaths {
		s.placed(some)
		dying.Broker.Vanish()
		s.placed(some) // commits do not wait for the broker
		dying.Kill()
		died := time.Now()
		dying.Broker.Release()
		var control time.Duration // the slowest message of another sender meanwhile
		for {
			control = max(control, s.single())
			n := 0
			s.Must("count", s.Shop().QueryRowContext(t.Context(), carriedRows).Scan(&n))
			if n == 0 {
				break
			}
			if time.Since(died) > servertest.Patience {
				t.Fatalf("%d rows are left\n%s", n, s.Explain())
			}
		}
		took := time.Since(died)
		t.Logf("all carried rows are gone %v after the sender's death; a single message took %v", took, control)
		if most := recovery + steps*control; took > most {
			t.Errorf("after the sender's death messages took %v, at most %v", took, most)
		}
		dying.Start()
	}
	s.placed(some)
	if n := s.end(); n.StagedAgain == 0 {
		t.Error("no message was staged again: nothing is shown")
	}
}

// carriedRows counts the rows of carried messages. A message without a target is held for a while.
const carriedRows = `SELECT count(*) FROM bridge_ledger l JOIN orders o ON o.id = l.id::text
WHERE l.stage_at IS NOT NULL AND o.target <> '/nowhere'`

// single commits one message with its own sender, and returns how long the message takes to arrive.
func (s *stage) single() time.Duration {
	s.t.Helper()
	began := time.Now()
	order := orders(1, world.Classic)
	s.commit(order)
	s.Must("wait", servertest.Await(s.t.Context(), "a single message arrives", func() (bool, error) {
		n := 0
		err := s.Post().QueryRowContext(s.t.Context(), `SELECT count(*) FROM arrivals WHERE id = $1`, order.Orders[0].ID.String()).Scan(&n)
		return n > 0, err
	}))
	return time.Since(began)
}

// end finishes and judges the world as World.End does, and returns the totals.
func (s *stage) end() world.Totals {
	s.t.Helper()
	s.Must("finish", s.Finish(s.t.Context()))
	totals, violations, err := s.Judge(s.t.Context())
	s.Must("judge", err)
	if len(violations) > 0 {
		s.t.Log(s.Histories(violations))
		s.t.Error(world.Summary(violations))
	}
	if totals.Carried == 0 {
		s.t.Error("nothing was carried: nothing is shown")
	}
	s.t.Log(totals)
	return totals
}
