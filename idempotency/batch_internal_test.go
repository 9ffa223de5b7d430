package idempotency

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A message alone is handled in a goroutine of its own, where a panic would end the process.
func TestAPanicOutsideOfTheHandlerOfABatchIsAFailedAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := newGuard(noMarks{}, "receiver", &Options{HandBack: true, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		begun := 0
		b := &batch[*sqlTransaction]{guard: g, limit: time.Now().Add(g.opts.Hold), turn: make(chan struct{}, 1),
			begin: func(context.Context) (*sqlTransaction, error) { begun++; panic("begin") }}
		err = b.handleAlone(t.Context(), []amqp.Delivery{{Acknowledger: noAcks{}, MessageId: "m"}})
		if !errors.Is(err, ErrHandedBack) || begun < 2 {
			t.Errorf("after %d attempts: %v, must be ErrHandedBack after several", begun, err)
		}
	})
}
