package verifier_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/proof"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// guessingLedger reports 'rolled back' when the outcome is unknown.
type guessingLedger struct{ driver.Ledger }

func (l guessingLedger) Settle(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, driver.Instance, error) {
	outcome, from, err := l.Ledger.Settle(ctx, id, wait)
	if err == nil && outcome == driver.StillOpen {
		outcome = driver.RolledBack
		_, from, err = l.Committed(ctx, []uuid.UUID{id})
	}
	return outcome, from, err
}

// unreadLedger is a ledger whose watermark the login may not read. Only old messages need it.
type unreadLedger struct{ driver.Ledger }

func (unreadLedger) SweptBefore(context.Context) (time.Time, error) {
	return time.Time{}, errNotAllowed
}

var errNotAllowed = errors.New("permission denied for table bridge_watermark")

func TestVerifierRefusesALedgerThatFailsTheProof(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	goodBatch(s, s.Queue("target", nil), 10)
	refuses(t, s, guessingLedger{s.Ledger}, bridge.ErrProof)
	refuses(t, s, unreadLedger{s.Ledger}, errNotAllowed)
}

func refuses(t *testing.T, s *stage.Stage, ledger driver.Ledger, want error) {
	t.Helper()
	staged := s.Depth(s.Topology.Queue)
	v, err := verifier.New(ledger, s.Broker, &verifier.Options{Topology: s.Topology})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	s.Eventually("the verifier refuses, or begins", func() bool { return len(ended) > 0 || v.Stats().Sessions > 0 })
	if v.Stats().Sessions > 0 {
		cancel()
		t.Errorf("a session has started; Run returned %v", servertest.Next(t, "the verifier ends", ended))
	} else if err := servertest.Next(t, "the verifier ends", ended); !errors.Is(err, want) {
		t.Errorf("Run returned %v", err)
	}
	if n := s.Depth(s.Topology.Queue); n != staged {
		t.Errorf("%d messages in the staging queue, there were %d: a refusing verifier must touch nothing", n, staged)
	}
}

// staleLedger reports, after a wait, the state before the wait, as a statement does that reads a
// snapshot from its own beginning.
type staleLedger struct{ driver.Ledger }

func (l staleLedger) Settle(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, driver.Instance, error) {
	before, _, err := l.Committed(ctx, []uuid.UUID{id})
	if err != nil {
		return driver.StillOpen, "", err
	}
	outcome, from, err := l.Ledger.Settle(ctx, id, wait)
	if outcome == driver.Committed && len(before) == 0 {
		outcome = driver.RolledBack
	}
	return outcome, from, err
}

func TestTheProofChecksTheOutcomeOfASettleThatHasWaited(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	for range 5 { // the result must not depend on timing
		if _, err := proof.Prove(t.Context(), staleLedger{s.Ledger}); !errors.Is(err, bridge.ErrProof) {
			t.Errorf("the proof says %v", err)
		}
	}
	if _, err := proof.Prove(t.Context(), s.Ledger); err != nil {
		t.Error(err)
	}
}

// If a broker falls silent while a session is being opened, a stop of the verifier takes effect
// soon, and not only when the heartbeat fails, after three minutes here.
func TestASilentBrokerDoesNotKeepAStartingVerifier(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.SQLite)
	for _, silence := range silences {
		gate, through := silence.gate(t, s.AMQP)
		v, err := verifier.New(s.Ledger, dial(t, through+"?heartbeat=60"), &verifier.Options{Topology: s.Topology, Drain: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- v.Run(ctx) }()
		gate.Reached(t)
		cancel()
		select {
		case err := <-ended:
			if began := v.Stats().Sessions > 0; err != nil && !began {
				t.Errorf("%s: %v", silence.names, err)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: Run does not end", silence.names)
		}
	}
}

// A broker may answer heartbeats, and a request never: a queue without a majority, a frozen node
// behind a proxy. The start must end all the same, and its error must name the request.
func TestABrokerThatDoesNotAnswerEndsTheStart(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.SQLite)
	var starts sync.WaitGroup
	for _, silence := range silences { // at the same time: each takes as long as a request may
		_, through := silence.gate(t, s.AMQP)
		failed := make(firstFailure, 1)
		v, err := verifier.New(s.Ledger, dial(t, through+"?heartbeat=600"), &verifier.Options{Topology: s.Topology, Observer: failed, Drain: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		starts.Go(func() { _ = v.Run(ctx) })
		starts.Go(func() {
			defer cancel()
			select {
			case err := <-failed:
				if text := err.Error(); !errors.Is(err, bridge.ErrUnavailable) || !strings.Contains(text, silence.names+": ") || !strings.Contains(text, "no answer from the broker") {
					t.Errorf("%s: %v", silence.names, err)
				}
			case <-time.After(90 * time.Second):
				t.Errorf("%s: the start neither ends nor fails", silence.names)
			}
		})
	}
	starts.Wait()
}

// silences are answers that a broker does not give to a verifier that starts.
var silences = []silence{
	{servertest.Method{50, 11}, 3, `queue "staging"`}, // the first three show whether the queues exist
	{servertest.Method{60, 11}, 1, "set prefetch"},    // the first is for the ledger queue
	{servertest.Method{85, 11}, 0, "open publishing channel"},
	{servertest.Method{60, 21}, 1, `consume "staging"`},
}

// A silence is an answer that does not come, and nothing comes behind it.
type silence struct {
	answer servertest.Method
	before int32  // this many earlier ones come, over all connections
	names  string // the request in the error
}

func (s silence) gate(t *testing.T, address string) (gate *servertest.Gate, through string) {
	var came atomic.Int32
	return servertest.NewGate(t, address, func(f servertest.Frame) bool {
		return f.Reply && f.Method == s.answer && came.Add(1) > s.before
	})
}

// A firstFailure gets the reason of the first session's end, or why it could not start.
type firstFailure chan error

func (firstFailure) Done(verifier.Event) {}

func (f firstFailure) SessionEnded(err error) {
	select {
	case f <- err:
	default:
	}
}

func TestCutConnectionsStartANewSessionAndLoseNothing(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	valve, address := servertest.Through(t, s.AMQP)
	s.Broker = dial(t, address)
	v := s.Verify(verifier.Options{})
	ids := map[string]bool{}
	for round := range 4 {
		maps.Copy(ids, goodBatch(s, queue, 500))
		sessions := v.Stats().Sessions
		if round%2 == 0 {
			valve.HoldReplies() // messages published now stay unconfirmed
		}
		valve.Cut()
		valve.Release()
		s.Eventually("a new session", func() bool { return v.Stats().Sessions > sessions })
	}
	expectAll(t, s, queue, ids)
	v.Stop()
	if n := s.Rows(); n != 0 {
		t.Errorf("%d rows left", n)
	}
}

// The session ends as a whole, with its ordered queues.
func TestKilledDatabaseConnectionsStartANewSessionAndLoseNothing(t *testing.T) {
	t.Parallel()
	s := orderedStage(t, bridge.Topology{})
	queue := s.Queue("target", nil)
	v := s.Verify(verifier.Options{SettleWait: stage.Patience, Patience: time.Hour}) // one settle waits for the whole time
	ids := goodBatch(s, queue, 500)
	add(ids, s.Commit(inOrder(queue, "key", 1))...)
	held, _ := s.Begin(stage.To(queue, "the killed one is rolled back"))
	sessions := v.Stats().Sessions
	// An idle connection that is killed is replaced silently.
	s.Eventually("a settle waits", func() bool {
		var waiting int
		err := s.DB.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting)
		return err == nil && waiting > 0
	})
	// The settle's connection is killed first: killing the sender would end the settle's wait.
	for _, which := range []string{`wait_event_type = 'Lock'`, `pid <> pg_backend_pid()`} {
		if _, err := s.DB.ExecContext(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND `+which); err != nil {
			t.Fatal(err)
		}
	}
	if err := held.Commit(); err == nil {
		t.Fatal("a killed transaction has committed")
	}
	s.Eventually("a new session", func() bool { return v.Stats().Sessions > sessions })
	maps.Copy(ids, goodBatch(s, queue, 500))
	add(ids, s.Commit(inOrder(queue, "key", 2))...)
	expectAll(t, s, queue, ids)
	s.Eventually("the killed one is dropped", func() bool { return v.Stats().Dropped > 0 })
}

func TestStagingQueueDeletedAndDeclaredAgain(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	var log servertest.Log
	v := s.Verify(verifier.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	made := func() int { return len(log.With("queue did not exist; created")) }
	before := made()
	if _, err := s.Channel.QueueDelete(s.Topology.Queue, false, false, false); err != nil {
		t.Fatal(err)
	}
	s.Eventually("a new session", func() bool { return v.Stats().Sessions > 1 })
	if n := made(); n != before+1 {
		t.Errorf("%d queues were made at first, and then %d: %q", before, n-before, log.With("queue did not exist; created"))
	}
	expectAll(t, s, queue, goodBatch(s, queue, 10))
}

func TestStopDrainsJudgedMessagesAndHandsBackTheRest(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	open, openIDs := s.Begin(stage.To(queue, "open"))
	ids := goodBatch(s, queue, 3000)
	first := s.Verify(verifier.Options{})
	s.Eventually("some are forwarded", func() bool { return first.Stats().Forwarded > 100 })
	first.Stop()
	forwarded := first.Stats().Forwarded
	if n := s.Depth(queue); int64(n) != forwarded {
		t.Errorf("%d at the target, %d forwarded", n, forwarded)
	}
	if n := s.Rows(); int64(n) != int64(len(ids))-forwarded {
		t.Errorf("%d rows, want one for each of the %d messages not forwarded", n, int64(len(ids))-forwarded)
	}
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	add(ids, openIDs...)
	second := s.Verify(verifier.Options{})
	expectAll(t, s, queue, ids)
	second.Stop()
	if n := s.Depth(queue); n != 0 {
		t.Errorf("%d messages came twice although nothing crashed", n)
	}
}

// keepingLedger is a ledger of an own table. Its rows stay, and many programs know their IDs.
// With such an ID a program that may write to the staging queue could send a message to any
// target.
type keepingLedger struct{ driver.Ledger }

func (keepingLedger) Features() driver.Features { return driver.Features{KeepsRows: true} }

func TestNewRefusesUnsafeOrUnusableOptionsAndLeavesThePoolAlone(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.SQLite)
	const idle = 1
	s.DB.SetMaxIdleConns(idle)
	need := (*verifier.Options)(nil).Connections()
	refused := func(ledger driver.Ledger, says ...string) {
		t.Helper()
		_, err := verifier.New(ledger, s.Broker, nil)
		for _, text := range says {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("New returned %v, must name %s", err, text)
			}
		}
	}
	refused(keepingLedger{s.Ledger}, "Options.Allow")
	s.DB.SetMaxOpenConns(5)
	refused(s.Ledger, "Options.Settlers", fmt.Sprintf("SetMaxOpenConns(%d)", need))
	s.DB.SetMaxOpenConns(need)
	if _, err := verifier.New(s.Ledger, s.Broker, nil); err != nil {
		t.Errorf("New returned %v, with as many connections as it needs", err)
	}
	useAtOnce(t, s.DB, 5)
	if stats := s.DB.Stats(); stats.Idle > idle || stats.MaxOpenConnections != need {
		t.Errorf("%d connections are idle and %d may be open, must be %d and %d", stats.Idle, stats.MaxOpenConnections, idle, need)
	}
}

// useAtOnce opens n connections at the same time, and returns them to the pool.
func useAtOnce(t *testing.T, db *sql.DB, n int) {
	t.Helper()
	conns := make([]*sql.Conn, n)
	for i := range conns {
		var err error
		if conns[i], err = db.Conn(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, conn := range conns {
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
