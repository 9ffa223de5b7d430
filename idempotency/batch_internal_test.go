package idempotency

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

type noInbox struct{ driver.Inbox }

func (noInbox) Transient(error) bool { return false }

type noAcks struct{ amqp.Acknowledger }

func (noAcks) Nack(uint64, bool, bool) error { return nil }

// A message alone is handled in a separate goroutine, where a panic would end the process.
func TestAPanicOutsideOfTheHandlerOfABatchIsAFailedAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys, err := engine.NewKeys(noInbox{}, "receiver", "Options", engine.Options{HandBack: true, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		begun := 0
		b := &batch[*engine.SQLTransaction]{keys: keys, limit: time.Now().Add(keys.Opts.Hold), turn: make(chan struct{}, 1),
			begin: func(context.Context) (*engine.SQLTransaction, error) { begun++; panic("begin") }}
		err = b.handleAlone(t.Context(), []amqp.Delivery{{Acknowledger: noAcks{}, MessageId: "m"}})
		if !errors.Is(err, ErrHandedBack) || begun < 2 {
			t.Errorf("after %d attempts: %v, must be ErrHandedBack after several", begun, err)
		}
	})
}
