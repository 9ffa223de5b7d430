package receiver_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// A full or missing staging queue makes the replies to all requests fail. No request is at fault,
// so none may be dead-lettered.
func TestABrokerThatTakesNoReplyCountsAgainstNoRequest(t *testing.T) {
	for name, c := range map[string]struct {
		spoil, fix func(s *stage.Stage)
		failure    error
	}{
		"full": {
			func(s *stage.Stage) {
				s.Queue("staging", amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
			},
			func(s *stage.Stage) { s.Queue("staging", nil) }, bridge.ErrNacked},
		"missing": {func(*stage.Stage) {}, func(s *stage.Stage) { s.Queue("staging", nil) }, bridge.ErrReturned},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const requests, attempts = 5, 3
			s := stage.New(t, stage.Postgres)
			must(t, migrate.Inbox(t.Context(), s.DB, migrate.PostgreSQL))
			inbox, err := postgres.OpenInbox(t.Context(), s.DB)
			must(t, err)
			_, err = s.Channel.QueueDelete("staging", false, false, false)
			must(t, err)
			c.spoil(s)
			dedup, err := idempotency.New(inbox, "bank", &idempotency.Options{
				Attempts: attempts, MinDelay: time.Millisecond, MaxDelay: time.Millisecond, Logger: stage.Logger(t),
				DeadLetter: func(_ context.Context, d amqp.Delivery, reason error) error {
					t.Errorf("request %s is dead-lettered: %v", d.MessageId, reason)
					return nil
				}})
			must(t, err)
			sends := s.NewSender(sender.Options{})
			var repaired sync.Once
			for n := range requests {
				request := amqp.Delivery{Acknowledger: acks{}, MessageId: fmt.Sprint(n), ReplyTo: replies}
				tries := 0
				must(t, dedup.Handle(t.Context(), s.DB, request, func(ctx context.Context, tx *sql.Tx) error {
					if tries++; tries > 2*attempts {
						repaired.Do(func() {
							_, _ = s.Channel.QueueDelete("staging", false, false, false)
							c.fix(s)
						})
					}
					reply, err := idempotency.Reply(request, amqp.Publishing{Body: []byte("paid")})
					if err != nil {
						return err
					}
					_, err = sends.SendTx(ctx, bridge.SQL(tx), reply)
					if err != nil && !errors.Is(err, c.failure) {
						t.Errorf("SendTx: %v", err)
					}
					return err
				}))
			}
			if got, want := dedup.Stats(), (idempotency.Stats{Handled: requests}); got != want {
				t.Errorf("stats are %+v, want %+v", got, want)
			}
		})
	}
}

type acks struct{ amqp.Acknowledger }

func (acks) Ack(uint64, bool) error { return nil }
