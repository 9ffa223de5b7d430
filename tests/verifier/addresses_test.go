package verifier_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// A broker's URL names several nodes. The node in use freezes: it accepts new connections and
// answers nothing. Senders and verifiers must switch to another node as soon as heartbeats are
// missing, which takes seconds.
func TestAFrozenNodeIsLeftWithinSeconds(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	address, err := url.Parse(s.AMQP)
	if err != nil {
		t.Fatal(err)
	}
	nodes := []*servertest.Valve{servertest.NewValve(t, address.Host), servertest.NewValve(t, address.Host)}
	hosts := nodes[0].Addr() + "," + nodes[1].Addr()
	s.Broker = dial(t, strings.Replace(s.AMQP, address.Host, hosts, 1)+"?heartbeat=1")
	s.Sender = s.NewSender(sender.Options{Carry: sender.CarryNever})
	v := s.Verify(verifier.Options{})
	for round := range 2 {
		queue := s.Queue(fmt.Sprintf("target-%d", round), nil) // copies of the last round may still come
		frozen := nodes[round]
		frozen.Vanish()
		began := time.Now()
		ids := map[string]bool{}
		s.Eventually("a transaction with messages commits", func() bool { // the first ones get no confirm
			tx, err := s.DB.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			sent, err := s.Sender.SendTx(t.Context(), bridge.SQL(tx), some(queue, 10)...)
			if err != nil {
				if _ = tx.Rollback(); !bridge.Retryable(err) {
					t.Fatal(err)
				}
				return false
			}
			add(ids, sent...)
			return tx.Commit() == nil
		})
		expectAll(t, s, queue, ids)
		t.Logf("round %d took %v", round, time.Since(began))
		frozen.Release()
	}
	if n := v.Stats().Sessions; n < 2 || n > 4 {
		t.Errorf("%d sessions", n)
	}
}
