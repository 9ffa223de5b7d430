package sender_test

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// shortTimeout is the timeout of a sender whose wait must time out. Package sender's tests check
// that the timeout is exact.
const shortTimeout = 300 * time.Millisecond

// Rule 2 of package bridge: if the broker does not confirm, whatever it does instead, the call
// returns an error. The error says that the transaction must roll back, and after the rollback no
// message is delivered. When the cause is gone the sender works again.
func TestAnUnconfirmedMessageIsAnErrorAndIsNotDelivered(t *testing.T) {
	t.Parallel()
	type trouble struct {
		broker     *bridge.Broker
		begin, end func()
	}
	for _, test := range []struct {
		name      string
		want      error
		retryable bool
		timeout   time.Duration
		trouble   func(t *testing.T, s *stage.Stage) trouble
	}{
		{"returned", bridge.ErrReturned, false, stage.Patience, func(t *testing.T, s *stage.Stage) trouble {
			return trouble{s.Broker, func() {
				if _, err := s.Channel.QueueDelete("staging", false, false, false); err != nil {
					t.Fatal(err)
				}
			}, func() {
				if err := s.Topology.Declare(t.Context(), s.Broker); err != nil {
					t.Fatal(err)
				}
			}}
		}},
		{"nacked", bridge.ErrNacked, true, stage.Patience, func(t *testing.T, s *stage.Stage) trouble {
			limit := func(n int) {
				servertest.SetPolicy(t, s.AMQP, "full", "^staging$", map[string]any{"max-length": n})
			}
			return trouble{s.Broker, func() {
				limit(1)
				s.Eventually("the queue is full", func() bool {
					tx := begin(t, s.DB)
					_, err := s.Sender.SendTx(t.Context(), bridge.SQL(tx), messages("target", 1)...)
					return errors.Is(errors.Join(err, tx.Rollback()), bridge.ErrNacked)
				})
			}, func() { limit(1000) }}
		}},
		{"unconfirmed", bridge.ErrUnconfirmed, true, shortTimeout, func(t *testing.T, s *stage.Stage) trouble {
			valve, broker := throughValve(t, s)
			return trouble{broker, valve.HoldReplies, valve.Release}
		}},
		{"no right to publish", bridge.ErrUnconfirmed, false, stage.Patience, func(t *testing.T, s *stage.Stage) trouble {
			user := servertest.User(t, s.AMQP, ".*", "^$", ".*")
			broker, err := bridge.Dial(t.Context(), user, &bridge.BrokerOptions{Logger: stage.Logger(t)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(broker.Close)
			return trouble{broker, func() {}, func() { servertest.Permit(t, user, ".*", ".*", ".*") }}
		}},
		{"no broker", bridge.ErrUnavailable, true, shortTimeout, func(t *testing.T, s *stage.Stage) trouble {
			valve, broker := throughValve(t, s)
			return trouble{broker, func() {
				valve.HoldReplies()
				valve.Cut()
				s.Eventually("the connection is gone", func() bool {
					_, err := newSender(t, s.Ledger, broker, shortTimeout).SendTx(t.Context(), bridge.SQL(begin(t, s.DB)), messages("target", 1)...)
					return !errors.Is(err, bridge.ErrUnconfirmed)
				})
			}, valve.Release}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			// The broker behaves in the same way for every database.
			s := stage.New(t, stage.Postgres)
			s.Queue("target", nil)
			trouble := test.trouble(t, s)
			sndr := newSender(t, s.Ledger, trouble.broker, test.timeout)
			trouble.begin()

			for way, send := range ways {
				ended := make(chan error, 1)
				go func() {
					_, err := send(t.Context(), sndr, s.DB, func(bridge.Tx) error { return nil }, messages("target", 3)...)
					ended <- err
				}()
				err := servertest.Next(t, way+" returns", ended)
				if !errors.Is(err, test.want) || bridge.Retryable(err) != test.retryable {
					t.Errorf("%s: error %v, retryable %t", way, err, bridge.Retryable(err))
				}
				contains(t, err, "the transaction must roll back")
				var failed *bridge.PublishError
				if test.want != bridge.ErrUnavailable && !errors.As(err, &failed) {
					t.Errorf("%s does not name the message: %v", way, err)
				}
			}

			trouble.end()
			patient := newSender(t, s.Ledger, trouble.broker, stage.Patience)
			var ids []uuid.UUID
			s.Eventually("it sends again", func() bool { // the end of the old connection may hit it once more
				err := inTx(t.Context(), s.DB, func(tx *sql.Tx) (err error) {
					ids, err = patient.SendTx(t.Context(), bridge.SQL(tx), messages("target", 3)...)
					return err
				})
				if err != nil && !bridge.Retryable(err) {
					t.Fatal(err)
				}
				return err == nil
			})
			settled(t, s, "target", ids...)
		})
	}
}

// throughValve connects to the stage's broker through a valve.
func throughValve(t *testing.T, s *stage.Stage) (*servertest.Valve, *bridge.Broker) {
	t.Helper()
	valve, address := servertest.Through(t, s.AMQP)
	address += "?heartbeat=600" // a valve may hold everything back for as long as a test takes
	broker, err := bridge.Dial(t.Context(), address, &bridge.BrokerOptions{Logger: stage.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	connect(t, s, broker)
	return valve, broker
}

// connect has a broker connect by sending a message.
func connect(t *testing.T, s *stage.Stage, broker *bridge.Broker) {
	t.Helper()
	tx := begin(t, s.DB)
	if _, err := newSender(t, s.Ledger, broker, stage.Patience).SendTx(t.Context(), bridge.SQL(tx), messages("target", 1)...); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
}
