package idempotency_test

import (
	"context"
	"database/sql"
	"slices"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency"
)

// A victim is a receiver that counts its steps: each word to the database and to the
// broker, and each effect.
type victim struct {
	driver.Keeper
	countdown
}

// countEntitySteps handles so many messages.
func countEntitySteps(ctx context.Context, c child, channel *amqp.Channel, deliveries <-chan amqp.Delivery) error {
	r, err := stores[c.Driver].connect(ctx, c.DSN)
	if err != nil {
		return err
	}
	v := &victim{r.keeper, countdown{c.Step}}
	handle, err := crashes[c.What].make(r, v, idempotency.Options{})
	if err != nil {
		return err
	}
	for range c.Messages {
		d := <-deliveries
		d.Acknowledger = stepping{channel, &v.countdown}
		err := handle(ctx, d, func(ctx context.Context, tx *sql.Tx, event string) error {
			defer v.step()
			return r.place(ctx, tx, event)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// stepping is a channel whose acks are steps, before and after.
type stepping struct {
	*amqp.Channel
	*countdown
}

func (s stepping) Ack(tag uint64, multiple bool) error {
	s.step()
	defer s.step()
	return s.Channel.Ack(tag, multiple)
}

func (v *victim) LockMark(ctx context.Context, tx bridge.Tx, consumer, name string) (string, error) {
	v.step() // the transaction has begun; the one before has committed
	defer v.step()
	return v.Keeper.LockMark(ctx, tx, consumer, name)
}

func (v *victim) SetMark(ctx context.Context, tx bridge.Tx, consumer, name, mark string) error {
	defer v.step()
	return v.Keeper.SetMark(ctx, tx, consumer, name, mark)
}

func (v *victim) Keep(ctx context.Context, tx bridge.Tx, consumer, entity string, version int64, message []byte) (bool, error) {
	defer v.step()
	return v.Keeper.Keep(ctx, tx, consumer, entity, version, message)
}

func (v *victim) Unkeep(ctx context.Context, tx bridge.Tx, consumer, entity string, version int64) error {
	defer v.step()
	return v.Keeper.Unkeep(ctx, tx, consumer, entity, version)
}

type crash struct {
	make     func(r *receiver, keeper driver.Keeper, opts idempotency.Options) (handler, error)
	messages []string
	effects  []string // what must have taken effect in the end, in this order
	steps    int      // how many there are at least
}

var crashes = map[string]crash{
	"Latest":    {(*receiver).latest, []string{"e:1", "e:3", "e:2", "e:3"}, []string{"1", "3"}, 20},
	"Ordered":   {(*receiver).ordered, []string{"e:3", "e:2", "e:1", "e:4"}, []string{"1", "2", "3", "4"}, 30},
	"HighWater": {(*receiver).highWater, []string{"e:001", "e:002", "e:002", "e:010"}, []string{"001", "002", "010"}, 22},
}

// A receiver is killed after its first step, another one after its second, and so on
// until one comes to the end alive. After each another receiver does what is left. The
// databases take turns with the steps.
func TestAReceiverKilledBetweenAnyTwoStepsLosesAndRepeatsNothing(t *testing.T) {
	for name, c := range crashes {
		t.Run(name, func(t *testing.T) {
			onEachStore(t, func(t *testing.T, s string, dsn string, r *receiver) {
				q := newQueue(t, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1_000_000})
				first, stride := steps(slices.Index(storeNames, s), len(storeNames))
				for step := first; ; step += stride {
					q.publish(c.messages...)
					killed := q.kill(child{Does: "entities", What: name, Step: step, Messages: len(c.messages), Driver: s, DSN: dsn})
					handle, err := c.make(r, r.keeper, idempotency.Options{DeadLetterExchange: true})
					must(t, err)
					finish(t, q, handle, r.place)
					if got := r.effectsOf(t)["e"]; !slices.Equal(got, c.effects) {
						t.Errorf("after a kill at step %d versions %v took effect, must be %v", step, got, c.effects)
					}
					r.forget(t)
					if !killed {
						if step < c.steps {
							t.Errorf("there were only %d steps", step-1)
						}
						break
					}
				}
			})
		})
	}
}

// finish handles what is in the queue, which nobody else consumes.
func finish(t *testing.T, q *queue, handle handler, effect func(context.Context, *sql.Tx, string) error) {
	t.Helper()
	q.deserted()
	redeliver(t, q, func(d amqp.Delivery) error { return handle(t.Context(), d, effect) })
}

// forget empties the tables.
func (r *receiver) forget(t *testing.T) {
	t.Helper()
	var kept int
	must(t, r.db.QueryRowContext(t.Context(), `SELECT count(*) FROM bridge_kept`).Scan(&kept))
	if kept > 0 {
		t.Errorf("%d messages are still kept", kept)
	}
	for _, table := range []string{"effects", "bridge_mark", "bridge_kept"} {
		_, err := r.db.ExecContext(t.Context(), `DELETE FROM `+table)
		must(t, err)
	}
}
