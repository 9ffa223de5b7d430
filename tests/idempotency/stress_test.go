package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/versions"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

var errHandler = errors.New("no such customer")

// Every message is in the queue twice, in random order. Handlers fail and panic at random, and
// consumers lose their connections with acks in flight.
func TestEveryMessageTakesEffectOnceUnderRandomFailures(t *testing.T) {
	t.Parallel()
	const entities, versions = 6, 12
	var want []string
	for version := 1; version <= versions; version++ {
		want = append(want, strconv.Itoa(version))
	}
	inOrder := func(got []string) bool { return slices.Equal(got, want) }
	inAnyOrder := func(got []string) bool {
		return slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want)))
	}
	latestLast := func(got []string) bool {
		place := -1
		for _, version := range got {
			next := slices.Index(want, version)
			if next <= place {
				return false
			}
			place = next
		}
		return place == versions-1
	}
	for strategy, right := range map[string]func(got []string) bool{
		"Handle": inAnyOrder, "Accept and Work": inAnyOrder, "Latest": latestLast, "Ordered": inOrder,
	} {
		for _, name := range []string{"PostgreSQL", "MariaDB"} {
			t.Run(strategy+" on "+name, func(t *testing.T) {
				t.Parallel()
				db := newDatabase(t, name)
				var events []string
				for entity := range entities {
					for _, version := range want {
						event := fmt.Sprintf("e%d:%s", entity, version)
						events = append(events, event, event)
					}
				}
				workThrough(t, db, strategy, events)
				for entity, got := range db.placed(t) {
					if !right(got) {
						t.Errorf("of %s versions %v took effect", entity, got)
					}
				}
				if n := len(db.placed(t)); n != entities {
					t.Errorf("events of %d entities took effect", n)
				}
			})
		}
	}
}

// workThrough has workers handle events until none is left.
func workThrough(t *testing.T, db *database, strategy string, events []string) {
	t.Helper()
	const workers, helpers = 8, 3
	const lives = 3 // how often the consumers connect
	r, err := db.receiver(strategy, db.inbox, versions.Options{Attempts: 100, MinDelay: time.Millisecond, MaxDelay: 5 * time.Millisecond,
		DeadLetterExchange: true, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	q := newQueue(t, quorumToDead)
	rand.Shuffle(len(events), func(a, b int) { events[a], events[b] = events[b], events[a] })
	q.publish(events...)
	effect := func(ctx context.Context, tx bridge.Tx, id string) error {
		if err := db.place(ctx, tx, id); err != nil {
			return err
		}
		switch rand.IntN(10) {
		case 0:
			return errHandler
		case 1:
			panic("out of range")
		}
		return nil
	}

	var all sync.WaitGroup
	defer all.Wait()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	if r.beside != nil {
		for range helpers {
			all.Go(func() {
				if err := r.beside(ctx, effect); err != nil {
					t.Error(err)
				}
			})
		}
	}
	for life := range lives {
		deliveries, handled := q.consume(), make(chan struct{}, len(events))
		var consumers sync.WaitGroup
		for range workers {
			consumers.Go(func() {
				for d := range deliveries {
					if err := r.handle(t.Context(), d, effect); err != nil && !errors.Is(err, idempotency.ErrNotAcked) {
						t.Error(err)
					}
					handled <- struct{}{}
				}
			})
		}
		if life < lives-1 {
			for range len(events) / lives {
				servertest.Next(t, "a message is handled", handled)
			}
		} else {
			eventually(t, "the queue is empty", func() (bool, error) {
				state, err := q.QueueDeclarePassive(q.name, true, false, false, false, nil)
				return state.Messages == 0, err
			})
		}
		q.stopConsumers()
		consumers.Wait()
	}
	q.redeliver(func(d amqp.Delivery) error { return r.handle(t.Context(), d, effect) }) // messages whose acks were lost
	if r.left != nil {
		eventually(t, "nothing is left", func() (bool, error) {
			left, err := r.left(t.Context())
			return !left, err
		})
	}
	q.wantEmpty()
	if d, ok, err := q.Get(dead, true); err != nil || ok {
		t.Errorf("the dead queue holds %q (%v)", d.Body, err)
	}
}
