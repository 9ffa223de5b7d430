// Package requestreply_test tests a request and its reply. In one transaction a bank pays, stages
// the reply and records the request as handled. So it pays and answers once, wherever it is
// killed.
package requestreply_test

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
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

func TestMain(m *testing.M) {
	servertest.Play(briefVariable, func(b brief) error { return b.run(context.Background()) })
	servertest.Main(m)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start starts the bank, in this test binary run once more. It stops at the point at, or never.
func start(t *testing.T, s *stage.Stage, at point) *program.Process {
	t.Helper()
	return program.StartCmd(t, servertest.Again(t, briefVariable, brief{s.DatabaseURL, s.AMQP, s.Topology, at}))
}

func TestARequestIsHandledAndAnsweredOnceWhereverItsReceiverIsKilled(t *testing.T) {
	for _, at := range []point{paid, replyStaged, replyCommitted, requestAcked} {
		t.Run(string(at), func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, stage.Postgres)
			must(t, migrate.Inbox(t.Context(), s.DB, migrate.PostgreSQL))
			_, err := s.DB.ExecContext(t.Context(), `CREATE TABLE payments (about text)`) // without a key, so a second payment shows
			must(t, err)
			for _, queue := range []string{requests, replies} {
				s.Queue(queue, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1_000_000})
			}
			v := s.Verify(verifier.Options{})
			s.Commit(bridge.Message{RoutingKey: requests, Publishing: amqp.Publishing{CorrelationId: "order 17", ReplyTo: replies, Body: []byte("please pay")}})

			victim := start(t, s, at)
			victim.Read(&victim.Stdout, string(at), func(said string) bool { return said == string(at)+"\n" })
			victim.Kill()
			bank := start(t, s, "")
			s.Eventually("a reply has come, and the requests and rows are gone", func() bool {
				return s.Depth(replies) > 0 && s.Depth(requests) == 0 && s.Rows() == 0
			})
			bank.Kill()
			s.Eventually("no consumer has the request", func() bool {
				q, err := s.Channel.QueueDeclarePassive(requests, true, false, false, false, nil)
				must(t, err)
				return q.Consumers == 0
			})
			if n := s.Depth(requests); n > 0 { // the bank had not acked it yet
				start(t, s, "")
				s.WaitEmpty(requests)
			}
			v.Stop()
			s.WantNothingLeft(t)

			taken, err := s.Take(replies)
			must(t, err)
			if len(taken) != 1 || taken[0].CorrelationId != "order 17" || string(taken[0].Body) != "paid" {
				t.Errorf("the replies are %+v", taken)
			}
			var payments int
			must(t, s.DB.QueryRowContext(t.Context(), `SELECT count(*) FROM payments WHERE about = 'order 17'`).Scan(&payments))
			if payments != 1 {
				t.Errorf("paid %d times", payments)
			}
		})
	}
}

// A full or missing staging queue makes the replies to all requests fail. No request is at fault,
// so none may be dead-lettered.
func TestABrokerThatTakesNoReplyCountsAgainstNoRequest(t *testing.T) {
	for name, c := range map[string]struct {
		spoil, mend func(s *stage.Stage)
		failure     error
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
			guard, err := idempotency.New(inbox, "bank", &idempotency.Options{
				Attempts: attempts, MinDelay: time.Millisecond, MaxDelay: time.Millisecond, Logger: stage.Logger(t),
				DeadLetter: func(_ context.Context, d amqp.Delivery, reason error) error {
					t.Errorf("request %s is dead-lettered: %v", d.MessageId, reason)
					return nil
				}})
			must(t, err)
			sends := s.NewSender(sender.Options{})
			var mended sync.Once
			for n := range requests {
				request := amqp.Delivery{Acknowledger: acks{}, MessageId: fmt.Sprint(n), ReplyTo: replies}
				tries := 0
				must(t, guard.Handle(t.Context(), s.DB, request, func(ctx context.Context, tx *sql.Tx) error {
					if tries++; tries > 2*attempts {
						mended.Do(func() {
							_, _ = s.Channel.QueueDelete("staging", false, false, false)
							c.mend(s)
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
			if got, want := guard.Stats(), (idempotency.Stats{Handled: requests}); got != want {
				t.Errorf("stats are %+v, want %+v", got, want)
			}
		})
	}
}

type acks struct{ amqp.Acknowledger }

func (acks) Ack(uint64, bool) error { return nil }
