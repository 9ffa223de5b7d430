package sender

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// An endingLedger is a ledger whose second call of Record ends by trip.
type endingLedger struct {
	countingLedger
	calls int
	trip  func()
}

func (l *endingLedger) Record(context.Context, bridge.Tx, []driver.Entry) error {
	if l.calls++; l.calls == 2 {
		l.trip()
	}
	return nil
}

// The messages of such a Stage are not sent, so the transaction must not commit, even if fn has
// recovered.
func TestAStageThatDoesNotReturnLosesNothing(t *testing.T) {
	for name, trip := range map[string]func(){
		"panic":  func() { panic("a bug in a driver") },
		"Goexit": runtime.Goexit,
	} {
		synctest.Test(t, func(t *testing.T) {
			b := new(slowBroker)
			s, _ := newSender(t, Options{OrderedShards: 1}, b, b)
			s.ledger = &endingLedger{trip: trip}
			m := s.TxMessages(t.Context(), nil)
			if _, err := m.Stage(t.Context(), small); err != nil {
				t.Fatal(err)
			}
			if _, err := m.Send(withKey); err != nil {
				t.Fatal(err)
			}
			var staging sync.WaitGroup
			staging.Go(func() {
				defer func() { _ = recover() }()
				ids, err := m.Stage(t.Context(), withKey)
				t.Errorf("%s: Stage has returned %v, %v", name, ids, err)
			})
			staging.Wait()
			if err := m.Confirm(t.Context()); err == nil || bridge.Retryable(err) {
				t.Errorf("%s: the transaction may commit without the messages sent before: %v", name, err)
			}
		})
	}
}

// When Send has returned, the caller may change the messages.
func TestSendCopiesItsMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := new(slowBroker)
		s, _ := newSender(t, Options{GroupMessages: 1}, b, nil)
		m := s.TxMessages(t.Context(), nil)
		inner := amqp.Table{}
		reused := bridge.Message{RoutingKey: "target", Publishing: amqp.Publishing{Headers: amqp.Table{"inner": inner}, Body: []byte("?")}}
		for _, content := range []string{"1", "2"} {
			copy(reused.Publishing.Body, content)
			inner["content"] = content
			if _, err := m.Send(reused); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
		var sent []string
		for _, m := range b.published {
			table, _ := m.Headers["inner"].(amqp.Table)
			header, _ := table["content"].(string)
			sent = append(sent, string(m.Body)+"/"+header)
		}
		if want := []string{"1/1", "2/2"}; !slices.Equal(sent, want) {
			t.Errorf("sent %v, want %v", sent, want)
		}
	})
}
