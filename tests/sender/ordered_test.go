package sender_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

func inOrder(queue, key, body string) bridge.Message {
	m := stage.To(queue, body)
	m.OrderKey = key
	return m
}

func orderedStage(t *testing.T) *stage.Stage {
	t.Helper()
	return stage.On(t, stage.Postgres, servertest.Vhost(t), bridge.Topology{Queue: "staging", OrderedShards: 3})
}

// stagedInOrder returns the bodies of a key's messages in its ordered queue, without the dots
// that make a body large.
func stagedInOrder(s *stage.Stage, key string) (bodies []string) {
	for _, d := range s.StagedInOrder(key) {
		if d.Headers["x-bridge-order-key"] == key {
			bodies = append(bodies, strings.TrimRight(string(d.Body), "."))
		}
	}
	return bodies
}

// Some messages are too large for a group, and there are more than fit into one group.
func TestTheMessagesOfATransactionAreStagedInTheOrderOfTheirKeys(t *testing.T) {
	t.Parallel()
	for _, grouped := range []bool{false, true} {
		t.Run(fmt.Sprintf("grouped %t", grouped), func(t *testing.T) {
			t.Parallel()
			s := orderedStage(t)
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

func TestAMissingOrderedQueueIsNamed(t *testing.T) {
	t.Parallel()
	s := orderedStage(t)
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
