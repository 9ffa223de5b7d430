package sender_test

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// outageTimeout is the timeout of a sender that meets an outage.
const outageTimeout = 2 * time.Second

// stageWithOwnBroker returns a stage with a broker of its own, and a sender with outageTimeout.
func stageWithOwnBroker(t *testing.T, carry sender.Carry) (*stage.Stage, *servers.RabbitMQ, *sender.Sender) {
	t.Helper()
	rabbit := servertest.StartRabbitMQ(t, nil)
	s := stage.On(t, stage.Postgres, rabbit.URL(), bridge.Topology{Queue: "staging"})
	s.Queue("target", nil)
	sndr, err := sender.New(s.Ledger, s.Broker, &sender.Options{
		Queue: "staging", Carry: carry, Timeout: outageTimeout, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, rabbit, sndr
}

// syncDeclarations lets the broker find its queues again after a Kill.
func syncDeclarations(t *testing.T, rabbit *servers.RabbitMQ) {
	t.Helper()
	if err := rabbit.SyncDeclarations(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// commit sends messages in a transaction, and returns their IDs and the time that the transaction
// took.
func commit(ctx context.Context, s *stage.Stage, sndr *sender.Sender, m ...bridge.Message) ([]uuid.UUID, time.Duration, error) {
	began := time.Now()
	ids, err := ways["InTx with Send"](ctx, sndr, s.DB, func(bridge.Tx) error { return nil }, m...)
	return ids, time.Since(began), err
}

// The broker stops. Transactions that are waiting for it fail. Later ones commit at once, and
// their messages arrive when the broker is back.
func TestTransactionsCommitInAnOutage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		carry sender.Carry
		m     bridge.Message
	}{
		"on outage, small": {sender.CarryOnOutage, stage.To("target", "small")},
		"small, large":     {sender.CarrySmall, stage.To("target", strings.Repeat("x", 20_000))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, rabbit, sndr := stageWithOwnBroker(t, c.carry)
			var want []uuid.UUID
			ids, _, err := commit(t.Context(), s, sndr, c.m)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, ids...)
			if n := carriedRows(t, s); n > 0 {
				t.Errorf("%d rows carry messages before the outage", n)
			}

			syncDeclarations(t, rabbit)
			rabbit.Kill()
			if _, _, err := commit(t.Context(), s, sndr, c.m); err == nil || !bridge.Retryable(err) {
				t.Errorf("the first transaction in the outage: %v", err)
			}
			const some = 30
			for range some {
				ids, took, err := commit(t.Context(), s, sndr, c.m)
				if err != nil || took > outageTimeout/2 {
					t.Fatalf("in the outage a transaction took %v, error %v", took, err)
				}
				want = append(want, ids...)
			}
			if n := carriedRows(t, s); n != some {
				t.Errorf("%d of %d rows carry messages", n, some)
			}

			if err := rabbit.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.Eventually("a transaction waits for the broker again", func() bool {
				before := carriedRows(t, s)
				ids, _, err := commit(t.Context(), s, sndr, c.m)
				if err != nil && !bridge.Retryable(err) {
					t.Fatal(err)
				}
				if err == nil {
					want = append(want, ids...)
				}
				return err == nil && carriedRows(t, s) == before
			})
			if err := sndr.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			redial(t, s)
			s.Verify(verifier.Options{})
			s.Eventually("the messages arrive", func() bool { return s.Rows() == 0 })
			seen := make(map[string]bool)
			for _, d := range s.Receive("target", s.Depth("target")) {
				seen[d.MessageId] = true // twice, if a confirm was lost with the broker
			}
			for _, id := range want {
				if !seen[id.String()] {
					t.Errorf("message %s has not arrived", id)
				}
			}
			if len(seen) != len(want) {
				t.Errorf("%d messages have arrived, want %d", len(seen), len(want))
			}
		})
	}
}

// redial gives the stage a new channel after the broker was away.
func redial(t *testing.T, s *stage.Stage) {
	t.Helper()
	conn, err := amqp.Dial(s.AMQP)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if s.Channel, err = conn.Channel(); err != nil {
		t.Fatal(err)
	}
}

// RabbitMQ confirms a message in a classic queue before it has fsynced it. Here the broker is
// killed and the messages of its classic queues are removed, as a crash of the host can remove
// them.
func TestAClassicStagingQueueLosesNoCarriedMessage(t *testing.T) {
	t.Parallel()
	rabbit := servertest.StartRabbitMQ(t, nil)
	s := stage.On(t, stage.Postgres, rabbit.URL(), bridge.Topology{Queue: "staging", Classic: true})
	s.Queue("target", nil)
	sndr, err := sender.New(s.Ledger, s.Broker, &sender.Options{
		Queue: "staging", Carry: sender.CarryAlways, Timeout: outageTimeout, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string]bool)
	send := func(body string) {
		t.Helper()
		ids, _, err := commit(t.Context(), s, sndr, stage.To("target", body))
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			want[id.String()] = true
		}
	}
	const some = 30
	for range some {
		send("small")
		send(strings.Repeat("x", 20_000))
	}
	if err := sndr.Flush(t.Context()); err != nil { // all are confirmed
		t.Fatal(err)
	}
	syncDeclarations(t, rabbit)
	rabbit.Kill()
	loseClassicQueues(t, rabbit)
	send("while the broker is away")
	if err := rabbit.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	redial(t, s)
	if n := len(s.Staged()); n > 1 {
		t.Fatalf("%d messages are still in the staging queue: nothing is shown", n)
	}
	send("afterwards")
	s.Verify(verifier.Options{})
	s.Eventually("the messages arrive", func() bool { return s.Rows() == 0 })
	for _, d := range s.Receive("target", s.Depth("target")) {
		delete(want, d.MessageId)
	}
	if len(want) > 0 {
		t.Errorf("%d messages have not arrived", len(want))
	}
}

// loseClassicQueues removes the messages of all classic queues of a broker that is down, and
// leaves the queues.
func loseClassicQueues(t *testing.T, rabbit *servers.RabbitMQ) {
	t.Helper()
	removed := 0
	err := filepath.WalkDir(filepath.Join(rabbit.Folder, "data"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && strings.Contains(path, "msg_stores") && slices.Contains(classicFiles, filepath.Ext(path)) {
			removed++
			err = os.Remove(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if removed == 0 {
		t.Fatal("the broker has no file of a classic queue: nothing is shown")
	}
}

// classicFiles are the extensions of the message store's files and of both versions of classic
// queues.
var classicFiles = []string{".rdq", ".idx", ".jif", ".qi", ".qs"}

// The broker is frozen. No transaction with only small messages waits for it. A transaction with
// a large message fails first, and later transactions carry the large message.
func TestAFrozenBrokerHoldsUpNoCarriedMessage(t *testing.T) {
	t.Parallel()
	s, rabbit, sndr := stageWithOwnBroker(t, sender.CarrySmall)
	small, large := stage.To("target", "small"), stage.To("target", strings.Repeat("x", 20_000))
	if _, _, err := commit(t.Context(), s, sndr, small, large); err != nil {
		t.Fatal(err)
	}
	rabbit.Freeze()
	t.Cleanup(rabbit.Thaw)
	waits := make(chan error, 1)
	go func() {
		_, _, err := commit(t.Context(), s, sndr, large)
		waits <- err
	}()
	var slowest time.Duration
	for len(waits) == 0 {
		_, took, err := commit(t.Context(), s, sndr, small)
		if err != nil {
			t.Fatal(err)
		}
		slowest = max(slowest, took)
	}
	if err := <-waits; err == nil || !bridge.Retryable(err) {
		t.Errorf("with a large message: %v", err)
	}
	for range 20 {
		_, took, err := commit(t.Context(), s, sndr, large, small)
		if err != nil {
			t.Fatal(err)
		}
		slowest = max(slowest, took)
	}
	t.Logf("the slowest transaction took %v", slowest)
	if slowest > outageTimeout/2 {
		t.Errorf("a transaction took %v, as long as the broker", slowest)
	}
}
