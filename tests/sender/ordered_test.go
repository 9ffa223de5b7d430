package sender_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

func inOrder(queue, key, body string) bridge.Message {
	m := stage.To(queue, body)
	m.OrderKey = key
	return m
}

func orderedStage(t *testing.T, classic bool) *stage.Stage {
	t.Helper()
	return stage.On(t, stage.Postgres, servertest.Vhost(t), bridge.Topology{Queue: "staging", Classic: classic, OrderedShards: 3})
}

// stagedInOrder are the bodies of a key's messages in its ordered queue. What is large has a
// number in front.
func stagedInOrder(s *stage.Stage, key string) (bodies []string) {
	for _, d := range s.StagedInOrder(key) {
		if d.Headers["x-bridge-order-key"] == key {
			bodies = append(bodies, strings.TrimRight(string(d.Body), "."))
		}
	}
	return bodies
}

// Some are too large for a group, and there are more than fit into one.
func TestTheMessagesOfATransactionAreStagedInTheOrderOfTheirKeys(t *testing.T) {
	t.Parallel()
	for _, classic := range []bool{false, true} {
		for _, grouped := range []bool{false, true} {
			t.Run(fmt.Sprintf("classic %t, grouped %t", classic, grouped), func(t *testing.T) {
				t.Parallel()
				s := orderedStage(t, classic)
				if !grouped {
					s.StageSingly()
				}
				keys := []string{"a", "b", "c", "d", "e"}
				var messages []bridge.Message
				want := map[string][]string{}
				for i := range 120 {
					key, body := keys[i%len(keys)], fmt.Sprint(i)
					want[key] = append(want[key], body)
					messages = append(messages, inOrder("target", key, body+strings.Repeat(".", i%7*2000)))
				}
				messages = append(messages, stage.To("target", "without a key"))
				s.Commit(messages...)
				for _, key := range keys {
					if got := stagedInOrder(s, key); fmt.Sprint(got) != fmt.Sprint(want[key]) {
						t.Errorf("key %s: staged %v, want %v", key, got, want[key])
					}
				}
				if n := len(s.Staged()); n != 1 {
					t.Errorf("%d messages in the staging queue, want the one without a key", n)
				}
			})
		}
	}
}

// Each writer begins to send when the one before it has committed, while others keep the
// senders busy. Every writer has a sender, and so a connection, of its own.
func TestWhoSendsAfterACommitIsBehindItInTheQueue(t *testing.T) {
	t.Parallel()
	s := orderedStage(t, false)
	keys := []string{"a", "b", "c", "d", "e", "f"}
	const writers, rounds = 3, 20
	senders := make([]*sender.Sender, writers)
	for i := range senders {
		broker, err := bridge.Dial(t.Context(), s.AMQP, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(broker.Close)
		if senders[i], err = sender.New(s.Ledger, broker, &sender.Options{Queue: "staging", OrderedShards: s.Topology.OrderedShards, Timeout: stage.Patience}); err != nil {
			t.Fatal(err)
		}
	}
	var all sync.WaitGroup
	for _, key := range keys {
		all.Go(func() {
			for i := range rounds {
				err := senders[i%writers].InTx(t.Context(), s.DB, nil, func(tx *sender.Tx) error {
					_, err := tx.Send(inOrder("target", key, fmt.Sprint(i)))
					return err
				})
				if err != nil {
					t.Errorf("key %s: %v", key, err)
				}
			}
		})
	}
	all.Wait()
	for _, key := range keys {
		got := stagedInOrder(s, key)
		if len(got) != rounds {
			t.Fatalf("key %s: %d messages, want %d", key, len(got), rounds)
		}
		for i, body := range got {
			if body != fmt.Sprint(i) {
				t.Fatalf("key %s: staged %v", key, got)
			}
		}
	}
}

func TestAKeyNeedsOrderedQueues(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.SQLite)
	tx := begin(t, s.DB)
	_, err := s.Sender.SendTx(t.Context(), bridge.SQL(tx), inOrder("target", "a", "body"))
	if !errors.Is(err, bridge.ErrInvalidMessage) || !strings.Contains(err.Error(), "OrderedShards") {
		t.Errorf("error %v", err)
	}
	commit(t, tx)
	if n := s.Rows(); n != 0 {
		t.Errorf("%d rows recorded", n)
	}
}

func TestAMissingOrderedQueueIsNamed(t *testing.T) {
	t.Parallel()
	s := orderedStage(t, false)
	queue := s.Topology.OrderedQueueOf("a")
	if _, err := s.Channel.QueueDelete(queue, false, false, false); err != nil {
		t.Fatal(err)
	}
	_, err := s.Sender.SendTx(t.Context(), bridge.SQL(begin(t, s.DB)), stage.To("target", "one"), inOrder("target", "a", "two"))
	if !errors.Is(err, bridge.ErrReturned) || !strings.Contains(err.Error(), `"`+queue+`"`) {
		t.Errorf("error %v", err)
	}
	if n := s.Depth("staging"); n != 0 {
		t.Errorf("%d messages staged", n)
	}
}

// During an outage a parked message would be overtaken by a later one that is staged.
func TestMessagesWithAKeyAreNotParked(t *testing.T) {
	t.Parallel()
	s := orderedStage(t, false)
	away, err := bridge.NewBroker("amqp://guest:guest@127.0.0.1:1/", &bridge.BrokerOptions{Logger: stage.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(away.Close)
	parking, err := sender.New(s.Ledger, away, &sender.Options{Queue: "staging", OrderedShards: 3,
		Timeout: 500 * time.Millisecond, ParkAfter: 200 * time.Millisecond, Parking: sender.ParkOnOutage, Logger: stage.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = parking.SendTx(t.Context(), bridge.SQL(begin(t, s.DB)), stage.To("target", "one"), inOrder("target", "a", "two"))
	if !errors.Is(err, bridge.ErrUnavailable) || !bridge.Retryable(err) {
		t.Errorf("error %v", err)
	}
	tx := begin(t, s.DB)
	if _, err = parking.SendTx(t.Context(), bridge.SQL(tx), stage.To("target", "one")); err != nil {
		t.Errorf("without a key: %v", err)
	}
	_ = tx.Rollback()
	if _, err := sender.New(s.Ledger, away, &sender.Options{OrderedShards: 3, Parking: sender.ParkAlways}); err == nil ||
		!strings.Contains(err.Error(), "Options.OrderedShards") {
		t.Errorf("ParkAlways with ordered queues: %v", err)
	}
}

// A quorum queue delivers a message of a high priority before others, on RabbitMQ 4.3.6 and
// not on 3.10.8: so a message with a key may have none.
func TestAPriorityBesideAKeyIsRefusedSinceItMayOvertake(t *testing.T) {
	t.Parallel()
	s := orderedStage(t, false)
	queue := s.Topology.OrderedQueueOf("a")
	for i := range 10 {
		err := s.Channel.Publish("", queue, true, false, amqp.Publishing{MessageId: fmt.Sprint(i), Priority: uint8(i / 5 * 9), DeliveryMode: 2})
		if err != nil {
			t.Fatal(err)
		}
	}
	s.WaitDepth(queue, 10)
	var ids []string
	for _, d := range s.StagedInOrder("a") {
		ids = append(ids, d.MessageId)
	}
	t.Logf("published with priority 0 and then 9: delivered as %v", ids)
	m := inOrder("target", "a", "body")
	m.Publishing.Priority = 9
	if _, err := s.Sender.SendTx(t.Context(), bridge.SQL(begin(t, s.DB)), m); !errors.Is(err, bridge.ErrInvalidMessage) {
		t.Errorf("error %v", err)
	}
}
