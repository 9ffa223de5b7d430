package main

import (
	"context"
	"errors"
	"os"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/tests/servers"
)

// The application's and the relay's processes are this program, here too.
func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		main()
		return
	}
	code := m.Run()
	if theWorld.world != nil && theWorld.err == nil { // a failed one is closed
		theWorld.world.close()
	}
	os.Exit(code)
}

// theWorld is made by the first test that needs it.
var theWorld struct {
	once  sync.Once
	world *world
	err   error
}

func testWorld(t *testing.T) *world {
	t.Helper()
	theWorld.once.Do(func() {
		// Not the test's own context: the world outlives the test.
		theWorld.world, theWorld.err = newWorld(context.Background(), config{
			rounds: 1, window: 300 * time.Millisecond, backlog: 1000, only: regexp.MustCompile(""),
		})
	})
	skipWithout(t, theWorld.err)
	return theWorld.world
}

// skipWithout ends a test for which a server is missing.
func skipWithout(t *testing.T, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, servers.ErrMissing) && os.Getenv("CI") != "true":
		t.Skip(err)
	default:
		t.Fatal(err)
	}
}

// A comparison is worth nothing if one of those compared loses messages, or sends
// what was rolled back.
func TestEveryContenderDeliversWhatWasCommittedAndNothingElse(t *testing.T) {
	w := testWorld(t)
	for _, c := range contenders {
		if c.purge == nil { // not a receiver
			t.Run(c.name, func(t *testing.T) { testContender(t, w, c, kind{}) })
		}
	}
	for _, c := range []*contender{ledger, outboxPoll} {
		t.Run(c.name+" on MariaDB", func(t *testing.T) { testContender(t, w, c, kind{onMariaDB: true}) })
	}
}

func testContender(t *testing.T, w *world, c *contender, k kind) {
	s, err := w.begin(t.Context(), c, k)
	skipWithout(t, err)
	defer s.end()
	m, err := s.measure(order{Window: time.Minute, Workers: 4, Stop: 60, Size: 512, RollBack: 0.3}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if m.Failed > 0 || m.Committed+m.RolledBack != 60 || m.Committed == 0 || m.RolledBack == 0 {
		t.Fatalf("%d committed, %d rolled back, %d failed with: %s", m.Committed, m.RolledBack, m.Failed, m.Failure)
	}
	if m.missing > 0 {
		t.Errorf("%d of %d messages did not come", m.missing, len(m.Messages))
	}
	s.stopProcesses() // what was rolled back would have come by now
	const first = 1   // of begin
	if came := s.target.between(0, now()); !c.silent && came != m.Committed+first {
		t.Errorf("%d messages came, %d were committed", came, m.Committed+first)
	}
}

func TestBacklogsAreDrained(t *testing.T) {
	w := testWorld(t)
	const backlog = 1000
	if d, err := w.drainShards(t.Context(), 2, backlog); err != nil || d.messages != backlog || d.rate <= 0 {
		t.Errorf("of two queues: %+v, %v", d, err)
	}
	for _, m := range movers {
		t.Run(m.name, func(t *testing.T) {
			if _, err := w.drain(t.Context(), drains[0], backlog, m.fill, m.move); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestEveryReceiverHandlesEachMessageOnce(t *testing.T) {
	w := testWorld(t)
	for _, c := range receivers {
		t.Run(c.name, func(t *testing.T) {
			s, err := w.begin(t.Context(), c, kind{inbox: 1000})
			if err != nil {
				t.Fatal(err)
			}
			defer s.end()
			const messages = 100
			again := letter{queue: s.place.Staging, id: uuid.Must(uuid.NewV7()).String()}
			publisher, err := newPublisher(s.place.AMQP, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer publisher.close()
			if err := errors.Join(feed(t.Context(), s.place, messages), publisher.publish(t.Context(), again, again)); err != nil {
				t.Fatal(err)
			}
			m, err := s.measure(order{Window: time.Minute, Workers: 4, Stop: messages + 2}, 0)
			if err != nil {
				t.Fatal(err)
			}
			if m.Failed > 0 || m.Committed != messages+2 {
				t.Fatalf("%d handled, %d failed with: %s", m.Committed, m.Failed, m.Failure)
			}
			var orders int
			if err := s.db.QueryRowContext(t.Context(), `SELECT count(*) FROM orders`).Scan(&orders); err != nil {
				t.Fatal(err)
			}
			const first = 1 // of begin
			if orders != messages+1+first {
				t.Errorf("%d orders of %d messages", orders, messages+1+first)
			}
			forgotten, err := c.purge(t.Context(), s.db)
			if err != nil || forgotten < 400 || forgotten > 600 {
				t.Errorf("%d of 1,000 keys were purged, must be about the older half: %v", forgotten, err)
			}
		})
	}
}
