package faults

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/faults/parts"
	"github.com/twoqueue/twoqueue/tests/faults/world"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/verifier"
)

// A stage is a world with one verifier, for a scenario that depends on one rule.
type stage struct {
	*world.World
	t        *testing.T
	verifier *world.Process
}

// newStage makes a stage on the shared servers, without a verifier.
func newStage(t *testing.T, change func(*world.Config)) *stage {
	t.Helper()
	config := world.Config{
		Diary:    world.NewDiary(t, *diariesFlag),
		AMQP:     servertest.Vhost(t),
		Shop:     servertest.PostgresDB(t),
		Post:     servertest.PostgresDB(t),
		Topology: bridge.Topology{Queue: "staging"},
	}
	change(&config)
	return &stage{World: world.New(t, config), t: t}
}

// await waits for a line of a diary.
func (s *stage) await(what string, line <-chan string) {
	s.t.Helper()
	servertest.Next(s.t, what, line)
}

// commit runs a sender with these transactions until it ends.
func (s *stage) commit(script ...parts.Transaction) {
	s.t.Helper()
	s.runToEnd(s.AddScript(script...))
}

func (s *stage) runToEnd(sender *world.Process) {
	s.t.Helper()
	sender.Start()
	servertest.Next(s.t, "the sender ends", sender.Done())
}

// prefetch is the most deliveries that the verifier holds.
const prefetch = 20

// aPrefetch returns transactions with prefetch deliveries. If the verifier already holds one
// delivery, it gets the last of these only after the broker has an ack of another. No other event
// shows acks. Work that finished before these messages is acked by then too.
func aPrefetch(to bridge.Target) (script []parts.Transaction) {
	for range prefetch {
		script = append(script, orders(1, to))
	}
	return script
}

// holds is how long a transaction stays open to outlast the lock time-out of 0.3 s, even on a slow
// machine.
const holds = 4 * time.Second

// orders returns a transaction whose messages are small enough to travel together.
func orders(n int, to bridge.Target) parts.Transaction {
	var t parts.Transaction
	for range n {
		id := uuid.Must(uuid.NewV7())
		id[15] = 0 // see parts.Message
		t.Orders = append(t.Orders, parts.Order{ID: id, To: to})
	}
	return t
}

// arrived waits until that many deliveries have arrived.
func (s *stage) arrived(want int) {
	s.t.Helper()
	s.Must("wait", s.AwaitCount("the messages arrive", s.Post(), `SELECT count(*) FROM arrivals`, func(n int) bool { return n >= want }))
}

// forgotten waits until the ledger is empty.
func (s *stage) forgotten() {
	s.t.Helper()
	s.Must("wait", s.AwaitCount("the rows are deleted", s.Shop(), `SELECT count(*) FROM bridge_ledger`, func(n int) bool { return n == 0 }))
}

// scenarios are short plays, each for one or more of the mutants. With the unchanged product none
// ends in a violation.
var scenarios = map[string]func(s *stage){
	"a transaction is open for longer than the lock time-out": func(s *stage) {
		commits, rollsBack := orders(5, world.Classic), orders(5, world.Classic)
		commits.Hold, rollsBack.Hold, rollsBack.RollBack = holds, holds, true
		beside := s.AddScript(rollsBack)
		beside.Start()
		s.commit(commits)
		servertest.Next(s.t, "the sender beside ends", beside.Done())
	},
	"a verifier dies while a target is missing": func(s *stage) {
		s.Must("delete target", s.RemoveTarget(world.Quorum))
		tried := s.verifier.Await("target is unavailable", parts.Deleted)
		s.commit(orders(1, world.Quorum))
		s.await("the verifier has tried", tried)
		s.verifier.Kill()
		s.Must("declare target", s.Declare(s.t.Context()))
		s.verifier.Start()
	},
	"a verifier dies while the target of one of two messages that travel together is missing": func(s *stage) {
		s.AddReceiver()
		s.Must("delete target", s.RemoveTarget(world.Quorum))
		held := s.verifier.Await("target is unavailable")
		t := orders(1, world.Classic)
		t.Orders = append(t.Orders, orders(1, world.Quorum).Orders...)
		s.commit(t)
		s.await("the verifier has tried", held)
		s.arrived(1)
		s.commit(aPrefetch(world.Classic)...)
		s.arrived(1 + prefetch)
		s.verifier.Kill()
		s.Must("declare target", s.Declare(s.t.Context()))
		s.verifier.Start()
	},
	"a verifier reconnects while a target is missing, and dies": func(s *stage) {
		s.AddReceiver()
		s.commit(orders(10, world.Classic))
		s.arrived(10)
		s.forgotten()
		world.Rest(s.t.Context(), 2*time.Second) // for the acks, which no event shows
		s.Must("delete target", s.RemoveTarget(world.Quorum))
		again, held := s.verifier.Await("session started"), s.verifier.Await("target is unavailable")
		s.verifier.Broker.Cut()
		s.await("the verifier is back", again)
		s.commit(orders(1, world.Quorum))
		s.await("the verifier has tried", held)
		s.commit(aPrefetch(world.Classic)...) // their delivery tags exceed the tags of the earlier messages
		s.arrived(10 + prefetch)
		s.verifier.Kill()
		s.Must("declare target", s.Declare(s.t.Context()))
		s.verifier.Start()
	},
	"the sender's way to the database is slow": func(s *stage) {
		s.commit(orders(1, world.Classic)) // evidence: without it nothing is dropped
		s.forgotten()
		p := s.AddScript(orders(1, world.Classic))
		p.Database.Slow(200 * time.Millisecond)
		s.runToEnd(p)
	},
	"the staging queue is missing": func(s *stage) {
		s.verifier.Kill() // a running verifier would declare the queue
		s.Must("delete staging queue", s.RemoveStaging())
		s.commit(orders(1, world.Classic))
		s.Must("declare staging queue", s.Declare(s.t.Context()))
		s.verifier.Start()
		s.commit(orders(1, world.Classic))
	},
	"strange messages are in the staging queue, and a verifier dies while the dead queue is missing": func(s *stage) {
		s.Must("delete dead queue", s.RemoveDead())
		held := s.verifier.Await("target is unavailable")
		s.Must("publish strays", s.PublishStrays(s.t.Context(), world.StrayMessages))
		s.await("the verifier has tried", held)
		s.verifier.Kill()
		s.Must("declare dead queue", s.Declare(s.t.Context()))
		s.verifier.Start()
		s.commit(orders(1, world.Classic))
	},
	// One more copy would not be enough: one handler in fifty fails after its work.
	"a message comes again and again": func(s *stage) {
		s.AddReceiver()
		t := orders(1, world.Classic)
		s.commit(t)
		s.arrived(1)
		const times = 4
		for range times {
			s.Must("publish again", s.PublishAgain(t.Orders[0].ID, world.Classic))
		}
		s.arrived(1 + times)
	},
}

// play plays a scenario with a mutant of the program.
func play(t *testing.T, program, mutant, name string) *stage {
	t.Helper()
	s := newStage(t, func(c *world.Config) { c.Program, c.Mutant = program, mutant })
	s.verifier = s.AddVerifier(func(o *verifier.Options) {
		o.Patience, o.Unroutable, o.Prefetch = time.Minute, time.Minute, prefetch
	})
	s.await("a verifier", s.verifier.Await("session started"))
	scenarios[name](s)
	if len(s.Receivers) == 0 {
		s.AddReceiver()
	}
	return s
}

func TestNoScenarioEndsInAViolation(t *testing.T) {
	t.Parallel()
	for name := range scenarios {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play(t, "", "", name).End(0)
		})
	}
}
