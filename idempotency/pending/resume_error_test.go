package pending_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

// The outside system cannot be asked about doubtful messages. A message that an operator retries
// does not wait for that, nor for the growing pauses between the questions.
func TestADoubtThatCannotBeResolvedHoldsUpNoReadyMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		r, m := newReceiver(t, pending.Options{FindOut: func(context.Context, pending.Message) (pending.Answer, error) {
			asked++
			return pending.Unknown, errors.New("the payment service is out")
		}}), &mailbox{}
		const messages, ready = 40, 20
		for n := range messages {
			err := r.effects.AtMostOnce(t.Context(), r.DB, r.Delivery(fmt.Sprint("m", n)), func(context.Context, amqp.Delivery) error { return errSMTP })
			receivertest.Must(t, err)
		}
		for n := range ready {
			receivertest.Must(t, r.rows.Retry(t.Context(), r.DB, fmt.Sprint("m", n)))
		}

		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.effects.Resume(ctx, r.DB, m.send()) }()
		time.Sleep(time.Second) // of the bubble's clock; less than one of the longer pauses
		m.mu.Lock()
		sent := len(m.sent)
		m.mu.Unlock()
		if sent != ready {
			t.Errorf("%d of %d ready messages are done", sent, ready)
		}
		stop()
		receivertest.Must(t, <-ended)
		// After 0, 100, 200 and 400 ms, each varied by up to a half.
		if asked == 0 || asked > 5 {
			t.Errorf("asked %d times in a second, without pauses", asked)
		}
	})
}
