package sender

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

func failing(err error) func(context.Context, []string) error {
	return func(context.Context, []string) error { return &bridge.PublishError{Err: err} }
}

// newSenderOn returns a sender whose messages all go to b.
func newSenderOn(t *testing.T, opts Options, b Broker) (*Sender, *carryingLedger, *bytes.Buffer) {
	t.Helper()
	s, ledger, log := carrying(t, opts, b)
	s.stager.broker = b
	for _, one := range s.ordered.stagers {
		one.broker = b
	}
	return s, ledger, log
}

// large is a message that CarrySmall does not carry, and that travels alone.
var large = text(strings.Repeat("x", 20_000))

// sends expects a transaction to take a given time, and to fail if fails is true.
func sends(t *testing.T, s *Sender, want time.Duration, fails bool, m ...bridge.Message) {
	t.Helper()
	began := time.Now()
	_, err := s.SendTx(t.Context(), nil, m...)
	if took := time.Since(began); took != want {
		t.Errorf("it took %v, want %v", took, want)
	}
	if fails != (err != nil) || fails && !bridge.Retryable(err) {
		t.Errorf("error %v", err)
	}
}

// The transaction that finds the outage fails. Later ones commit: their rows carry the messages,
// until a probe is confirmed.
func TestEveryMessageIsCarriedInAnOutage(t *testing.T) {
	for _, opts := range []Options{{Carry: CarrySmall}, {Carry: CarryOnOutage}, {Carry: CarryOnOutage, GroupMessages: 1}} {
		for _, m := range []bridge.Message{large, text("small")} {
			if opts.Carry == CarrySmall && len(m.Publishing.Body) < 100 {
				continue // it is always carried
			}
			synctest.Test(t, func(t *testing.T) {
				b := &scriptedBroker{plain: true, answer: silent}
				s, ledger, log := newSenderOn(t, opts, b)
				m.Publishing.Headers = amqp.Table{"a": "b"}
				sends(t, s, 5*time.Second, true, m) // waits for Options.Timeout
				b.answers(away)
				sends(t, s, 0, false, m, m)
				sends(t, s, 0, false, m)
				if got := fmt.Sprint(ledger.unpublished()); got != "[true true true]" || b.times() != 1 {
					t.Errorf("unpublished %s; the broker was asked %d times", got, b.times())
				}
				row, err := wire.ReadRecord(ledger.Identity(), ledger.entries[1].Message)
				if err != nil || row.ID != ledger.entries[1].ID || !row.Carried || row.Message.Publishing.Headers["a"] != "b" ||
					row.Message.RoutingKey != "target" || !bytes.Equal(row.Message.Publishing.Body, m.Publishing.Body) {
					t.Errorf("the row holds %+v (%v)", row, err)
				}
				time.Sleep(carryProbe)
				sends(t, s, 0, false, m, m) // the first one is the probe
				b.times()
				b.answers(nil)
				flush(t, s)
				if got := fmt.Sprint(ledger.unpublished()); got != "[true true true false true]" {
					t.Errorf("unpublished %s", got)
				}
				sends(t, s, 0, false, m)
				if last := ledger.entries[len(ledger.entries)-1]; last.Message != nil {
					t.Error("a message is carried although the outage is over")
				}
				if text := log.String(); strings.Count(text, "not published") != 1 || strings.Count(text, "published again") != 1 || strings.Count(text, "\n") != 2 {
					t.Errorf("the log is %q", text)
				}
			})
		}
	}
}

// A failure that time does not repair is an error of each waiting transaction.
func TestOnlyAFailureThatTimeRepairsIsAnOutage(t *testing.T) {
	closes := func(code int) error {
		return fmt.Errorf("%w: %w", bridge.ErrUnconfirmed, &amqp.Error{Code: code, Server: true, Recover: true})
	}
	for _, test := range []struct {
		failure error
		outage  bool
	}{
		{bridge.ErrUnavailable, true},
		{bridge.ErrBlocked, true},
		{bridge.ErrNacked, true},
		{bridge.ErrUnconfirmed, true},
		{bridge.ErrReturned, false},
		{bridge.ErrCredentials, false},
		{closes(amqp.AccessRefused), false},
		{closes(amqp.PreconditionFailed), false},
		{fmt.Errorf("%w: the Broker is closed: %w", bridge.ErrUnavailable, context.Canceled), false},
	} {
		for name, first := range map[string]bridge.Message{"waits": large, "carried": text("small")} {
			synctest.Test(t, func(t *testing.T) {
				b := &scriptedBroker{plain: true, answer: failing(test.failure)}
				s, ledger, _ := newSenderOn(t, Options{}, b)
				_, _ = s.SendTx(t.Context(), nil, first)
				b.times()
				_, err := s.SendTx(t.Context(), nil, large)
				if test.outage != (err == nil) {
					t.Errorf("%s, %v: the next one fails by %v", name, test.failure, err)
				}
				if last := ledger.entries[len(ledger.entries)-1]; test.outage != (last.Message != nil) || test.outage != last.Unpublished {
					t.Errorf("%s, %v: carried %t, unpublished %t", name, test.failure, last.Message != nil, last.Unpublished)
				}
				b.answers(nil)
				flush(t, s)
			})
		}
	}
}

// In an outage that ends with a refused login, transactions get that error.
func TestAnOutageEndsWithAFailureThatTimeDoesNotRepair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &scriptedBroker{plain: true, answer: away}
		s, ledger, _ := newSenderOn(t, Options{Carry: CarryOnOutage}, b)
		sends(t, s, 0, true, large)
		b.answers(failing(bridge.ErrCredentials))
		time.Sleep(carryProbe)
		sends(t, s, 0, false, large) // the probe
		b.times()
		if _, err := s.SendTx(t.Context(), nil, large); !errors.Is(err, bridge.ErrCredentials) || ledger.entries[2].Message != nil {
			t.Errorf("carried %t, error %v", ledger.entries[2].Message != nil, err)
		}
		flush(t, s)
	})
}

// After a second a slow broker counts as out for others. Its confirm ends that.
func TestAPublicationThatWaitsLetsOthersCarry(t *testing.T) {
	for name, first := range map[string]bridge.Message{"alone": large, "in a group": text("small")} {
		synctest.Test(t, func(t *testing.T) {
			b := &scriptedBroker{plain: true, answer: func(context.Context, []string) error { time.Sleep(3 * time.Second); return nil }}
			s, ledger, _ := newSenderOn(t, Options{Carry: CarryOnOutage}, b)
			var waiting sync.WaitGroup
			waiting.Go(func() { sends(t, s, 3*time.Second, false, first) })
			time.Sleep(outAfter + 10*time.Millisecond)
			sends(t, s, 0, false, large)
			if !ledger.entries[1].Unpublished {
				t.Errorf("%s: published", name)
			}
			waiting.Wait()
			b.answers(nil)
			sends(t, s, 0, false, large)
			if ledger.entries[2].Message != nil {
				t.Errorf("%s: carried after the confirm", name)
			}
		})
	}
}

// A caller that does not wait for long causes no outage.
func TestACallerThatGivesUpFindsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &scriptedBroker{plain: true, answer: func(ctx context.Context, _ []string) error {
			select {
			case <-time.After(100 * time.Millisecond):
				return nil
			case <-ctx.Done():
				return silent(ctx, nil)
			}
		}}
		s, ledger, _ := newSenderOn(t, Options{Carry: CarryOnOutage}, b)
		for _, m := range []bridge.Message{large, text("small")} {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			if _, err := s.SendTx(ctx, nil, m); !errors.Is(err, bridge.ErrUnconfirmed) {
				t.Errorf("error %v", err)
			}
			cancel()
		}
		sends(t, s, 100*time.Millisecond, false, large)
		if ledger.entries[2].Message != nil {
			t.Error("carried")
		}
	})
}

// A Wait that finds an early confirm late must not end an outage.
func TestAnEarlyConfirmEndsNoLaterOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &scriptedBroker{plain: true}
		s, ledger, _ := newSenderOn(t, Options{}, b)
		staged := stageEarly(t, s, large)
		b.times()
		b.answers(away)
		sends(t, s, 0, true, large)
		if err := staged.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		sends(t, s, 0, false, large)
		if ledger.entries[2].Message == nil {
			t.Error("not carried")
		}
	})
}

// In an outage messages with an order key fail at once, but one transaction a second tries.
func TestMessagesWithAKeyFailAtOnceDuringAKnownOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &scriptedBroker{plain: true, answer: silent}
		s, ledger, _ := newSenderOn(t, Options{OrderedShards: 1, Carry: CarryOnOutage}, b)
		sends(t, s, 5*time.Second, true, withKey) // no outage is known
		sends(t, s, 5*time.Second, true, large)
		asked := b.times()
		sends(t, s, 0, true, withKey)
		sends(t, s, 0, true, small, withKey)
		sends(t, s, 0, false, small)
		if b.times() != asked || ledger.entries[len(ledger.entries)-1].Message == nil {
			t.Error("the broker was asked")
		}
		time.Sleep(carryProbe)
		sends(t, s, 5*time.Second, true, withKey)
		time.Sleep(carryProbe)
		b.answers(nil)
		sends(t, s, 0, false, small, withKey) // its confirm ends the outage
		sends(t, s, 0, false, withKey)
		sends(t, s, 0, false, small)
		if ledger.entries[len(ledger.entries)-1].Message != nil {
			t.Error("carried after the outage")
		}
		for _, e := range ledger.entries {
			if e.Message != nil && bytes.Contains(e.Message, []byte(wire.HeaderOrderKey)) {
				t.Error("a message with an order key is carried")
			}
		}
	})
}

// Messages with an order key have separate queues.
func TestAFullStagingQueueIsNoOutageForMessagesWithAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &scriptedBroker{plain: true, answer: failing(bridge.ErrNacked)}
		s, ledger, _ := newSenderOn(t, Options{OrderedShards: 1}, b)
		for _, one := range s.ordered.stagers {
			one.broker = &scriptedBroker{plain: true}
		}
		sends(t, s, 0, true, large)
		sends(t, s, 0, false, withKey)
		sends(t, s, 0, false, large)
		if ledger.entries[2].Message == nil {
			t.Error("the confirm of a message with a key ends the outage of another queue")
		}
	})
}

// By default small messages are carried, unless the rows cannot carry them.
func TestSmallMessagesAreCarriedByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ledger, _ := newSenderOn(t, Options{}, &scriptedBroker{plain: true})
		sends(t, s, 0, false, small, large)
		if ledger.entries[0].Message == nil || ledger.entries[1].Message != nil {
			t.Errorf("recorded %v", ledger.entries)
		}
		flush(t, s)
		b := &scriptedBroker{plain: true, answer: away}
		own, _ := newSender(t, Options{}, b, nil)
		sends(t, own, 0, true, small)
		sends(t, own, 0, true, small)
		if b.times() != 2 {
			t.Errorf("the broker was asked %d times", b.times())
		}
	})
}

// A carried message that waits for its confirm does the same for large ones. While it is on its
// way, it is the probe, and no other message is published.
func TestACarriedMessageThatWaitsLetsOthersCarry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &scriptedBroker{plain: true, answer: silent}
		s, ledger, _ := newSenderOn(t, Options{}, b)
		sends(t, s, 0, false, small)
		time.Sleep(3 * time.Second)
		sends(t, s, 0, false, large, small)
		if got := fmt.Sprint(ledger.unpublished()); got != "[false true true]" {
			t.Errorf("unpublished %s", got)
		}
		b.answers(nil)
		flush(t, s)
	})
}

// Messages with an order key do not fail because a confirm of others is late.
func TestALateConfirmIsNoOutageForMessagesWithAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ledger, _ := newSenderOn(t, Options{OrderedShards: 1}, &scriptedBroker{plain: true, answer: silent})
		for _, one := range s.ordered.stagers {
			one.broker = &scriptedBroker{plain: true}
		}
		var waiting sync.WaitGroup
		waiting.Go(func() { sends(t, s, 5*time.Second, true, large) })
		time.Sleep(2 * outAfter)
		sends(t, s, 0, false, withKey, large)
		if ledger.entries[2].Message == nil {
			t.Error("no outage is known")
		}
		waiting.Wait()
	})
}

// A refusal of a large message does not stop the publication of small ones.
func TestARefusalOfOneTransactionConcernsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ledger, _ := newSenderOn(t, Options{}, &scriptedBroker{plain: true})
		s.stager.broker = &scriptedBroker{plain: true, answer: failing(&amqp.Error{Code: amqp.PreconditionFailed, Server: true, Recover: true})}
		if _, err := s.SendTx(t.Context(), nil, large); err == nil {
			t.Error("no error")
		}
		sends(t, s, 0, false, small)
		if ledger.entries[1].Unpublished {
			t.Error("unpublished")
		}
		flush(t, s)
	})
}
