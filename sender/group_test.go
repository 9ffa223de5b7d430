package sender

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/twoqueue/twoqueue/bridge"
)

// withoutBroker makes a sender whose broker is out, so that nothing is ever confirmed, and
// returns what closes its broker.
func withoutBroker(t *testing.T, opts Options) (s *Sender, end func()) {
	t.Helper()
	broker, err := bridge.NewBroker("amqp://127.0.0.1:1/", &bridge.BrokerOptions{
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if s, err = New(noLedger{}, broker, &opts); err != nil {
		t.Fatal(err)
	}
	return s, broker.Close
}

func stageEarly(t *testing.T, s *Sender, m bridge.Message) *Staged {
	t.Helper()
	staged, err := s.StageTx(t.Context(), nil, m)
	if err != nil {
		t.Fatal(err)
	}
	return staged
}

// underWay waits until the shipments are done, and returns what is left.
func underWay(s *Sender, begun ...*Staged) int {
	for _, staged := range begun {
		<-staged.shipment.done
	}
	s.stager.mu.Lock()
	defer s.stager.mu.Unlock()
	return s.stager.underWay
}

var groups = map[string]int{"alone": 1, "in groups": 0}

// Transactions that stage early, roll back and never wait hold a bounded amount.
func TestWhatNobodyWaitsForIsBounded(t *testing.T) {
	for name, group := range groups {
		t.Run(name, func(t *testing.T) {
			defer goleak.VerifyNone(t)
			s, end := withoutBroker(t, Options{Timeout: time.Hour, GroupMessages: group})
			defer end()
			var begun []*Staged
			for range earlyBytes / earlyLeast {
				begun = append(begun, stageEarly(t, s, small))
			}
			late := stageEarly(t, s, small)
			if late.shipment != nil {
				t.Error("more is under way than may be")
			}
			waited := make(chan error)
			go func() { waited <- late.Wait(t.Context()) }()
			for { // a caller who waits is served all the same
				s.stager.mu.Lock()
				n := s.stager.underWay
				s.stager.mu.Unlock()
				if n > earlyBytes {
					break
				}
				runtime.Gosched()
			}
			end()
			if err := <-waited; !errors.Is(err, bridge.ErrUnavailable) {
				t.Errorf("error %v", err)
			}
			if n := underWay(s, begun...); n != 0 {
				t.Errorf("%d bytes are under way after the end", n)
			}
		})
	}
}

func TestWhatNobodyWaitsForEnds(t *testing.T) {
	for name, group := range groups {
		t.Run(name, func(t *testing.T) {
			defer goleak.VerifyNone(t)
			s, end := withoutBroker(t, Options{Timeout: 100 * time.Millisecond, GroupMessages: group})
			defer end()
			ctx, cancel := context.WithCancel(t.Context())
			first, err := s.StageTx(ctx, nil, small)
			if err != nil {
				t.Fatal(err)
			}
			cancel() // of which it does not know
			if n := underWay(s, first, stageEarly(t, s, small)); n != 0 {
				t.Errorf("%d bytes are under way after the end", n)
			}
			for range 2 {
				if err := first.Wait(t.Context()); !bridge.Retryable(err) {
					t.Errorf("error %v", err)
				}
			}
		})
	}
}

var small = bridge.Message{RoutingKey: "target", Publishing: amqp.Publishing{Body: []byte("small")}}

// One that is larger than everything that may be under way is staged early by itself.
func TestALargeMessageIsStagedEarlyToo(t *testing.T) {
	defer goleak.VerifyNone(t)
	s, end := withoutBroker(t, Options{Timeout: time.Hour, MaxMessageBytes: 2 * earlyBytes})
	defer end()
	large := small
	large.Publishing.Body = make([]byte, earlyBytes+1)
	first, second := stageEarly(t, s, large), stageEarly(t, s, small)
	if first.shipment == nil || second.shipment != nil {
		t.Errorf("begun: the large one %t, another beside it %t", first.shipment != nil, second.shipment != nil)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := first.Wait(ctx); bridge.Retryable(err) || err == nil { // gives it up
		t.Errorf("error %v", err)
	}
}

// A shipment that travels alone ends as the context of its caller has ended.
func TestALeashEndsAsItsCallersContext(t *testing.T) {
	gone := errors.New("the customer is gone")
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	late, stop := context.WithTimeout(t.Context(), 0)
	defer stop()
	for want, by := range map[error]context.Context{context.Canceled: cancelled, context.DeadlineExceeded: late} {
		l := newLeash(time.Hour)
		if l.Err() != nil {
			t.Errorf("error %v before its end", l.Err())
		}
		l.end(by)
		<-l.Done()
		if l.Err() != want || !errors.Is(context.Cause(l), context.Cause(by)) || context.Cause(l).Error() != context.Cause(by).Error() {
			t.Errorf("error %v, cause %v", l.Err(), context.Cause(l))
		}
		l.release()
	}
	l := newLeash(0)
	<-l.Done()
	l.end(cancelled)
	if l.Err() != context.DeadlineExceeded {
		t.Errorf("error %v after the timeout", l.Err())
	}
	l.release()
}
