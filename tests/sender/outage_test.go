package sender_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// outageTimeout is the timeout of a sender that meets an outage.
const outageTimeout = 2 * time.Second

// anOutage is a stage with a broker of its own, and a sender that waits for outageTimeout.
func anOutage(t *testing.T, carry sender.Carry) (*stage.Stage, *servers.RabbitMQ, *sender.Sender) {
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

// commit sends messages in a transaction, and returns their IDs and how long the transaction took.
func commit(ctx context.Context, s *stage.Stage, sndr *sender.Sender, m ...bridge.Message) ([]uuid.UUID, time.Duration, error) {
	began := time.Now()
	ids, err := ways["InTx with Send"](ctx, sndr, s.DB, func(bridge.Tx) error { return nil }, m...)
	return ids, time.Since(began), err
}

// The broker stops. The transactions that wait for it fail; later ones commit at once, and their
// messages arrive when it is back.
func TestInAnOutageTransactionsCommit(t *testing.T) {
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
			s, rabbit, sndr := anOutage(t, c.carry)
			var want []uuid.UUID
			ids, _, err := commit(t.Context(), s, sndr, c.m)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, ids...)
			if n := carriedRows(t, s); n > 0 {
				t.Errorf("%d rows carry messages before the outage", n)
			}

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
			conn, err := amqp.Dial(s.AMQP)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			if s.Channel, err = conn.Channel(); err != nil {
				t.Fatal(err)
			}
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

// The broker stands still. No transaction with small messages waits for it. One with a large
// message fails first, and later transactions carry it.
func TestAFrozenBrokerHoldsUpNoCarriedMessage(t *testing.T) {
	t.Parallel()
	s, rabbit, sndr := anOutage(t, sender.CarrySmall)
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

// By default small messages are carried and large ones are not. All arrive.
func TestByDefaultSmallMessagesAreCarried(t *testing.T) {
	t.Parallel()
	for _, kind := range carriers {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, kind)
			s.Queue("target", nil)
			sndr, err := sender.New(s.Ledger, s.Broker, &sender.Options{Queue: "staging"})
			if err != nil {
				t.Fatal(err)
			}
			ids, _, err := commit(t.Context(), s, sndr, stage.To("target", "small"), stage.To("target", strings.Repeat("x", 20_000)))
			if err != nil {
				t.Fatal(err)
			}
			if n := carriedRows(t, s); n != 1 {
				t.Errorf("%d rows carry messages, want 1", n)
			}
			if err := sndr.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.Verify(verifier.Options{})
			arrive(t, s, ids...)
		})
	}
}
