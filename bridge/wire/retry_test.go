package wire_test

import (
	"errors"
	"maps"
	"reflect"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// original returns a delivery with every property that a broker acts on.
func original() amqp.Delivery {
	return amqp.Delivery{Exchange: "shop", RoutingKey: "order", MessageId: "m", Expiration: "7", UserId: "u", Priority: 3, DeliveryMode: amqp.Persistent,
		Headers: amqp.Table{"mine": "yes", "CC": []any{"c"}, "BCC": []any{"b"}}, Body: []byte("body")}
}

// back returns a copy as the broker delivers it to its receiver again.
func back(p amqp.Publishing, queue string) amqp.Delivery {
	d := delivered(p)
	d.Headers = maps.Clone(d.Headers)
	d.RoutingKey = queue
	d.Headers["x-death"] = []any{amqp.Table{"queue": queue + ".retry.1s", "reason": "expired", "exchange": "", "routing-keys": []any{queue + ".retry.1s"}}}
	d.Headers["x-first-death-reason"], d.Headers["x-last-death-reason"] = "expired", "expired"
	return d
}

func TestARetriedMessageIsRestoredWholeAndTheBrokerActsOnNoneOfIt(t *testing.T) {
	d := original()
	for retries := 1; retries <= 3; retries++ {
		d.Headers["x-death"], d.Headers["x-delivery-count"] = []any{amqp.Table{"queue": "q"}}, int64(2)
		copied, err := wire.Retry(d, retries+1, retries)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"CC", "BCC", "x-death", "x-delivery-count"} {
			if copied.Headers[name] != nil {
				t.Errorf("the copy has %s", name)
			}
		}
		if copied.Expiration != "" || copied.UserId != "" || copied.DeliveryMode != amqp.Persistent {
			t.Errorf("the copy: %+v", copied)
		}
		d = wire.Restored(back(copied, "q"))
		if again := wire.Restored(d); !reflect.DeepEqual(again, d) {
			t.Errorf("restored twice: %+v", again)
		}
		if failed, n := wire.Retries(d); failed != retries+1 || n != retries {
			t.Errorf("%d attempts and %d retries", failed, n)
		}
		want := original()
		want.UserId = "" // no broker has checked it again
		want.Headers[wire.HeaderAttempts], want.Headers[wire.HeaderRetries] = int64(retries+1), int64(retries)
		if !reflect.DeepEqual(d, want) {
			t.Errorf("restored\n got %+v\nwant %+v", d, want)
		}
	}
}

// Only messages from the default exchange are restored.
func TestAMessageOfAnotherWayIsNotRestored(t *testing.T) {
	d := amqp.Delivery{Exchange: "shop", Headers: amqp.Table{wire.HeaderAttempts: int64(1), wire.HeaderExchange: "a", wire.HeaderRoutingKey: "b"}}
	if got := wire.Restored(d); !reflect.DeepEqual(got, d) {
		t.Errorf("restored: %+v", got)
	}
}

func TestAStrangeNumberOfAttemptsIsClamped(t *testing.T) {
	for value, want := range map[any]int{nil: 0, "7": 0, int64(-1): 0, int32(7): 7, int16(7): 7, int8(-7): 0, 7.5: 0, int64(1) << 40: 1<<31 - 1, true: 0} {
		if failed, _ := wire.Retries(amqp.Delivery{Headers: amqp.Table{wire.HeaderAttempts: value}}); failed != want {
			t.Errorf("%v: %d, want %d", value, failed, want)
		}
	}
}

func TestAMessageWithoutRoomForTheHeadersOfACopyIsRefused(t *testing.T) {
	for name, headers := range map[string]amqp.Table{"full": {"a": strings.Repeat("x", 100<<10)}, "record": {wire.HeaderDeadRecord: "1"}} {
		if _, err := wire.Retry(amqp.Delivery{Headers: headers}, 1, 1); !errors.Is(err, bridge.ErrInvalidMessage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAReceiversLetterGoesBackToItsQueueAsItCame(t *testing.T) {
	d := original()
	d.Headers[wire.HeaderAttempts], d.Headers[wire.HeaderRetries] = int64(5), int64(5)
	letter := wire.ReceiverLetter(d, "q", amqp.Table{wire.HeaderDeadReason: "failed", wire.HeaderDeadAttempts: int64(6)})
	for name, published := range map[string]amqp.Publishing{"letter": letter, "record": wire.DeadRecord(letter)} {
		dead, err := wire.OpenDead(delivered(published))
		if err != nil {
			t.Fatal(err)
		}
		if queue, ok := wire.ReceiverOf(dead); !ok || queue != "q" {
			t.Errorf("%s: its receiver's queue is %q", name, queue)
		}
		got := wire.Restored(back(wire.ReplayToReceiver(dead), "q"))
		want := original()
		want.UserId = ""
		want.Headers[wire.HeaderAttempts] = int64(0)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s comes back\n got %+v\nwant %+v", name, got, want)
		}
	}
}

// The broker itself moves a message at the delivery limit, and notes the queue that it was in.
func TestAMessageThatTheBrokerMovedGoesBackToItsQueueAsItCame(t *testing.T) {
	moved := amqp.Delivery{RoutingKey: "q.dead", MessageId: "m", Headers: amqp.Table{"mine": "yes",
		"x-death": []any{amqp.Table{"queue": "q", "reason": "delivery_limit", "exchange": "shop", "routing-keys": []any{"order"}}}}}
	if queue, ok := wire.ReceiverOf(moved); !ok || queue != "q" {
		t.Errorf("its receiver's queue is %q", queue)
	}
	got := wire.Restored(back(wire.ReplayToReceiver(moved), "q"))
	if got.Exchange != "shop" || got.RoutingKey != "order" || len(got.Headers) != 2 || got.Headers["mine"] != "yes" {
		t.Errorf("it comes back %+v", got)
	}
	moved.Headers[wire.HeaderLedger] = "a"
	if _, ok := wire.ReceiverOf(moved); ok {
		t.Error("a staged message is taken for a receiver's")
	}
}
