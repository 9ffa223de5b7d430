package verifier_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// lose commits carried messages as a sender does whose publications are lost or, if unpublished
// is set, that has published none.
func lose(t *testing.T, s *stage.Stage, unpublished bool, messages ...bridge.Message) map[string]bool {
	t.Helper()
	return record(t, s, unpublished, func(*wire.Staged) {}, messages...)
}

// record commits rows that carry messages, with records that the caller may change.
func record(t *testing.T, s *stage.Stage, unpublished bool, change func(*wire.Staged), messages ...bridge.Message) map[string]bool {
	t.Helper()
	tx, err := s.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	want := map[string]bool{}
	var entries []driver.Entry
	for _, m := range messages {
		m.ID = uuid.Must(uuid.NewV7())
		staged := wire.Staged{Message: m, Ledger: s.Ledger.Identity(), Carried: true, StagedAt: wire.MadeAt(m.ID)}
		change(&staged)
		entries = append(entries, driver.Entry{ID: m.ID, Message: wire.EncodeRecord(staged.Publishing()), Unpublished: unpublished})
		add(want, m.ID)
	}
	if err := s.Ledger.Record(t.Context(), bridge.SQL(tx), entries); err != nil {
		t.Fatalf("record: %v", err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	return want
}

// carrying makes the stage's sender carry all messages from now on.
func carrying(s *stage.Stage) { s.Sender = s.NewSender(sender.Options{Carry: sender.CarryAlways}) }

// expectOnce waits for all messages and checks that each has come once.
func expectOnce(t *testing.T, s *stage.Stage, queue string, ids map[string]bool) {
	t.Helper()
	seen := map[string]int{}
	for _, d := range s.Receive(queue, len(ids)) {
		seen[d.MessageId]++
	}
	for id := range ids {
		if seen[id] != 1 {
			t.Errorf("message %s has come %d times", id, seen[id])
		}
	}
	s.Eventually("all rows are gone", func() bool { return s.Rows() == 0 })
	if n := s.Depth(queue); n > 0 {
		t.Errorf("%d messages too many", n)
	}
}

// These messages exist only in their rows.
func TestALostCarriedMessageArrives(t *testing.T) {
	t.Parallel()
	for _, database := range append(stage.Everywhere[:len(stage.Everywhere):len(stage.Everywhere)], stage.MariaDB) {
		t.Run(database.Name, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, database)
			target := s.Queue("target", nil)
			first, second := s.Verify(verifier.Options{}), s.Verify(verifier.Options{})
			lost := lose(t, s, false, some(target, 3)...)
			expectOnce(t, s, target, lost)
			never := lose(t, s, true, some(target, 3)...)
			expectOnce(t, s, target, never)
			for _, v := range []*stage.Running{first, second} {
				v.Stop()
			}
			if n := first.Stats().Restaged + second.Stats().Restaged; n != int64(len(lost)+len(never)) {
				t.Errorf("%d were staged again, must be %d", n, len(lost)+len(never))
			}
		})
	}
}

// A purge of the queue loses plain messages and no carried ones.
func TestAPurgedStagingQueueLosesNoCarriedMessage(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	carrying(s)
	target := s.Queue("target", nil)
	want := map[string]bool{}
	for range 15 {
		add(want, s.Commit(some(target, 100)...)...)
	}
	// A busy broker may confirm too late. Then the sender leaves the messages to their rows.
	published := func() bool { return s.Sender.Stats().Waiting == 0 }
	s.Eventually("no publication is on its way", published)
	purged, err := s.Channel.QueuePurge(s.Topology.Queue, false)
	if err != nil || purged == 0 {
		t.Fatalf("purged %d deliveries: %v", purged, err)
	}
	add(want, s.Commit(some(target, 100)...)...)
	s.Eventually("no publication is on its way", published)
	lost := len(want) - len(s.Staged())
	v := s.Verify(verifier.Options{})
	expectOnce(t, s, target, want)
	v.Stop()
	if n := v.Stats().Restaged; n != int64(lost) {
		t.Errorf("%d were staged again, must be %d", n, lost)
	}
}

// passMarkers waits until markers have passed through the queues this number of times: each time
// a lost message arrives.
func passMarkers(t *testing.T, s *stage.Stage, times int) (restaged int64) {
	t.Helper()
	queue := s.Queue(fmt.Sprint("markers of ", uuid.New()), nil)
	for range times {
		lose(t, s, false, stage.To(queue, "lost"))
		s.Receive(queue, 1)
	}
	return int64(times)
}

// While a target is missing, its messages circulate through the waiting queue, and their stage
// times move on. An earlier release had parked some of them, and a migration has moved these to their
// rows: their records equal records of plain messages, and are older than the last sweep.
func TestMessagesForAMissingTargetAreStagedOnceAtMost(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	carrying(s)
	const messages, parked = 200, 100
	options := verifier.Options{Prefetch: 100, Patience: 500 * time.Millisecond, Unroutable: stage.Patience}
	want := record(t, s, true, func(m *wire.Staged) { m.Carried, m.StagedAt = false, time.Now().Add(-3*time.Hour) },
		append(some("target", parked-1), stage.To("target", strings.Repeat("large", 50_000)))...)
	for _, statement := range []string{
		`UPDATE bridge_ledger SET recorded_at = recorded_at - interval '3 hours', stage_at = stage_at - interval '3 hours'`,
		`UPDATE bridge_watermark SET swept_before = CURRENT_TIMESTAMP`,
	} {
		if _, err := s.DB.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	first, second := s.Verify(options), s.Verify(options)
	add(want, s.Commit(some("target", messages)...)...)
	setAside := func() int64 { return first.Stats().SetAside + second.Stats().SetAside }
	s.Eventually("they are set aside again and again", func() bool { return setAside() > 2*(messages+parked) })
	markers := passMarkers(t, s, 4) // more than twice the least time by which a stage time moves
	target := s.Queue("target", nil)
	expectOnce(t, s, target, want)
	first.Stop()
	second.Stop()
	if n := first.Stats().Restaged + second.Stats().Restaged - markers; n != parked {
		t.Errorf("%d were staged, must be the %d parked ones", n, parked)
	}
}

// The messages stay in the staging queue beyond their stage time.
func TestABacklogIsNotStagedAgain(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	carrying(s)
	target := s.Queue("target", nil)
	want := map[string]bool{}
	const messages = 3000
	for len(want) < messages {
		add(want, s.Commit(some(target, 100)...)...)
	}
	if _, err := s.DB.ExecContext(t.Context(),
		`UPDATE bridge_ledger SET recorded_at = recorded_at - interval '20 seconds', stage_at = stage_at - interval '20 seconds'`); err != nil {
		t.Fatal(err)
	}
	options := verifier.Options{Prefetch: 10}
	first, second := s.Verify(options), s.Verify(options)
	markers := passMarkers(t, s, 1)
	expectOnce(t, s, target, want)
	first.Stop()
	second.Stop()
	if n := first.Stats().Restaged + second.Stats().Restaged; n != markers {
		t.Errorf("%d were staged again without need", n-markers)
	}
}

// While a transaction is open, its messages are neither due nor touched, for which MariaDB would wait.
func TestACarriedMessageOfALongTransactionIsForwardedOnce(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.MariaDB)
	carrying(s)
	target := s.Queue("target", nil)
	v := s.Verify(verifier.Options{Prefetch: 20, Patience: 500 * time.Millisecond})
	tx, ids := s.Begin(some(target, 50)...)
	s.Eventually("they wait", func() bool { return v.Stats().SetAside > 50 })
	markers := passMarkers(t, s, 2)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	add(want, ids...)
	expectOnce(t, s, target, want)
	v.Stop()
	if n := v.Stats().Restaged; n != markers {
		t.Errorf("%d were staged again without need", n-markers)
	}
}

// After an outage of the broker very many messages are only in their rows. A new message waits
// behind few of them.
func TestAFreshMessageOvertakesABacklogInTheLedger(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	carrying(s)
	target, fresh := s.Queue("target", nil), s.Queue("fresh", nil)
	const messages = 20_000
	want := map[string]bool{}
	for len(want) < messages {
		maps.Copy(want, lose(t, s, true, some(target, 1000)...))
	}
	arrivals, stop := s.Consume(fresh)
	defer stop()
	v := s.Verify(verifier.Options{})
	s.Eventually("the backlog begins to come", func() bool { return s.Depth(target) > 0 })
	began := time.Now()
	var overtaken []int // messages of the backlog that were overtaken by each
	for s.Depth(target) < messages*3/4 {
		before := s.Depth(target)
		id := s.Commit(stage.To(fresh, "fresh"))[0]
		d := servertest.Next(t, "the fresh message arrives", arrivals)
		if d.MessageId != id.String() {
			t.Fatalf("message %s arrives, must be %s", d.MessageId, id)
		}
		if err := d.Ack(false); err != nil {
			t.Fatal(err)
		}
		overtaken = append(overtaken, s.Depth(target)-before)
	}
	t.Logf("three quarters of the backlog came in %v; by so many each fresh message was overtaken: %v", time.Since(began), overtaken)
	if most := slices.Max(overtaken); most > messages/4 {
		t.Errorf("%d of %d messages have overtaken a fresh one", most, messages)
	}
	expectOnce(t, s, target, want)
	v.Stop()
	if n := v.Stats().Restaged; n != messages {
		t.Errorf("%d were staged, must be %d", n, messages)
	}
}
