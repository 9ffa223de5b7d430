package bridge

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
)

// outgoing makes n messages with bodies of a size.
func outgoing(n, size int) []Outgoing {
	out := make([]Outgoing, n)
	for i := range out {
		out[i] = Outgoing{Target{RoutingKey: "q"}, amqp.Publishing{MessageId: uuid.NewString(), Body: make([]byte, size)}}
	}
	return out
}

// Whatever the broker does instead of confirming, Publish waits to the end of its deadline and
// not longer, and says what is known.
func TestPublishEndsAtItsDeadline(t *testing.T) {
	const large = 2 * burstLimit
	for name, test := range map[string]struct {
		peer   *peer // nil: there is no broker
		n      int
		size   int
		want   []error
		blamed int     // the message that the error names; -1: none
		next   []error // of the next Publish, of one message, which is not sent
	}{
		"there is no broker":               {nil, 1, 1, []error{ErrUnavailable}, -1, []error{ErrUnavailable}},
		"it confirms nothing":              {&peer{}, 10, 1, []error{ErrUnconfirmed, context.DeadlineExceeded}, 0, nil},
		"it confirms the first":            {&peer{confirms: 1}, 2, 1, []error{ErrUnconfirmed, context.DeadlineExceeded}, 1, nil},
		"it confirms all but the last":     {&peer{confirms: 9}, 10, 1, []error{ErrUnconfirmed}, 9, nil},
		"it reads nothing after the first": {&peer{confirms: 1, reads: 1}, 5, large, []error{ErrUnavailable, context.DeadlineExceeded}, -1, []error{ErrUnavailable, context.DeadlineExceeded}},
		"it blocks":                        {&peer{blocks: "low on memory"}, 1, 1, []error{ErrUnconfirmed, ErrBlocked}, 0, []error{ErrBlocked}},
		"it blocks and reads nothing":      {&peer{blocks: "low on disk", reads: 1}, 5, large, []error{ErrBlocked}, -1, []error{ErrBlocked}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := brokerOfNobody(t)
				if test.peer != nil {
					b = brokerOf(t, *test.peer)
				}
				publish := func(messages []Outgoing, want []error) error {
					t.Helper()
					const deadline = 3 * time.Second
					ctx, cancel := context.WithTimeout(t.Context(), deadline)
					defer cancel()
					began := time.Now()
					err := b.Publish(ctx, messages)
					if took := time.Since(began); took != deadline {
						t.Errorf("it took %v of %v", took, deadline)
					}
					for _, want := range want {
						if !errors.Is(err, want) {
							t.Errorf("error %v, want %v", err, want)
						}
					}
					if !Retryable(err) {
						t.Errorf("not retryable: %v", err)
					}
					if test.peer != nil && !strings.Contains(err.Error(), test.peer.blocks) {
						t.Errorf("does not tell the broker's reason: %v", err)
					}
					return err
				}
				messages := outgoing(test.n, test.size)
				err := publish(messages, test.want)
				if test.blamed >= 0 {
					if failed := new(PublishError); !errors.As(err, &failed) || failed.ID.String() != messages[test.blamed].MessageId || failed.Target != messages[0].Target {
						t.Errorf("blamed is another than message %d: %v", test.blamed, err)
					}
				}
				if test.next != nil {
					if err := publish(outgoing(1, 1), test.next); errors.Is(err, ErrUnconfirmed) {
						t.Errorf("the next message was sent: %v", err)
					}
				}
			})
		})
	}
}

// A caller who gives up hears at once, and is not to try again.
func TestPublishEndsWithItsCaller(t *testing.T) {
	for name, broker := range map[string]func(*testing.T) *Broker{
		"there is no broker":  brokerOfNobody,
		"it confirms nothing": func(t *testing.T) *Broker { return brokerOf(t, peer{}) },
		"it reads nothing":    func(t *testing.T) *Broker { return brokerOf(t, peer{reads: 1}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, leave := context.WithCancelCause(t.Context())
				gone := errors.New("the shop shuts down")
				time.AfterFunc(time.Minute, func() { leave(gone) })
				b, began := broker(t), time.Now()
				err := b.Publish(ctx, outgoing(5, 2*burstLimit))
				if took := time.Since(began); took != time.Minute {
					t.Errorf("it took %v", took)
				}
				if err == nil || Retryable(err) || b.up != nil && !errors.Is(err, gone) {
					t.Errorf("retryable %t: %v", Retryable(err), err)
				}
			})
		})
	}
}

func TestTheEndOfAConnectionWaitsForNoSilentPeer(t *testing.T) {
	for _, test := range []struct {
		peer peer
		want time.Duration
	}{{peer{}, 0}, {peer{reads: 1}, closePatience}} {
		synctest.Test(t, func(t *testing.T) {
			b := brokerOf(t, test.peer)
			unconfirmed := make(chan error, 1)
			go func() { unconfirmed <- b.Publish(t.Context(), outgoing(2, 1)) }()
			synctest.Wait()
			began := time.Now()
			b.up.publishers[0].conn.Close()
			if took := time.Since(began); took != test.want {
				t.Errorf("a peer that reads %d messages: it took %v, want %v", test.peer.reads, took, test.want)
			}
			if err := <-unconfirmed; !errors.Is(err, ErrUnconfirmed) {
				t.Errorf("what was in flight: %v", err)
			}
		})
	}
}
