package sender

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A slowBroker takes a while for each confirm, and fails messages that contain a word.
type slowBroker struct {
	takes   time.Duration
	fails   string
	blocked string // why it accepts nothing

	mu        sync.Mutex
	taken     []string // names of the messages
	published []bridge.Outgoing
}

func (b *slowBroker) Blocked() string { return b.blocked }

func (*slowBroker) Done() <-chan struct{} { return nil }

func (b *slowBroker) Publish(ctx context.Context, messages []bridge.Outgoing) error {
	select {
	case <-time.After(b.takes):
	case <-ctx.Done():
		return &bridge.PublishError{Err: fmt.Errorf("%w: %w", bridge.ErrUnconfirmed, context.Cause(ctx))}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range messages {
		if b.fails != "" && bytes.Contains(m.Body, []byte(b.fails)) {
			return &bridge.PublishError{Err: bridge.ErrNacked}
		}
		b.published = append(b.published, m)
		for _, word := range strings.Fields(string(m.Body)) {
			if name, ok := strings.CutPrefix(word, "message"); ok {
				b.taken = append(b.taken, name)
			}
		}
	}
	return nil
}

// A countingLedger counts the recorded messages. Its rows cannot carry messages.
type countingLedger struct {
	noLedger
	recorded int
}

func (l *countingLedger) Record(_ context.Context, _ bridge.Tx, entries []driver.Entry) error {
	l.recorded += len(entries)
	return nil
}

// newSender returns a sender with one broker for messages without a key, and one for messages with
// a key.
func newSender(t *testing.T, opts Options, others, inOrder Broker) (*Sender, *countingLedger) {
	t.Helper()
	ledger := new(countingLedger)
	opts.Logger = slog.New(slog.DiscardHandler)
	s, err := New(ledger, new(bridge.Broker), &opts)
	if err != nil {
		t.Fatal(err)
	}
	s.stager.broker = others
	for _, one := range s.ordered.stagers {
		one.broker = inOrder
	}
	return s, ledger
}

var small = bridge.Message{RoutingKey: "target", Publishing: amqp.Publishing{Body: []byte("small")}}

// ofSize has a message that gathers with others, and one that travels alone.
var ofSize = map[string]bridge.Message{
	"in a group": small,
	"alone":      {RoutingKey: "target", Publishing: amqp.Publishing{Body: make([]byte, groupBytes)}},
}

func stageEarly(t *testing.T, s *Sender, m bridge.Message) *Staged {
	t.Helper()
	staged, err := s.StageTx(t.Context(), nil, m)
	if err != nil {
		t.Fatal(err)
	}
	return staged
}

// underWay returns the bytes under way when all goroutines are idle.
func underWay(s *Sender) int {
	synctest.Wait()
	s.stager.mu.Lock()
	defer s.stager.mu.Unlock()
	return s.stager.underWay
}

// Transactions that stage early, roll back and never wait hold a bounded amount.
func TestUnawaitedEarlyStagingIsBounded(t *testing.T) {
	for _, group := range []int{1, 0} { // alone, or in groups
		synctest.Test(t, func(t *testing.T) {
			s, _ := newSender(t, Options{Timeout: time.Hour, GroupMessages: group}, &slowBroker{takes: 2 * time.Hour}, nil)
			for range earlyBytes / earlyLeast {
				stageEarly(t, s, small)
			}
			late := stageEarly(t, s, small)
			if late.publication != nil {
				t.Error("more is under way than may be")
			}
			waited := make(chan error, 1)
			go func() { waited <- late.Wait(t.Context()) }()
			if n := underWay(s); n <= earlyBytes {
				t.Error("a call that waits is not served")
			}
			if err := <-waited; !errors.Is(err, bridge.ErrUnconfirmed) {
				t.Errorf("error %v", err)
			}
			if n := underWay(s); n != 0 {
				t.Errorf("%d bytes are under way after the end", n)
			}
		})
	}
}

// A message that is larger than the limit of bytes under way is staged early alone.
func TestALargeMessageIsStagedEarlyToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newSender(t, Options{MaxMessageBytes: 2 * earlyBytes}, &slowBroker{takes: time.Second}, nil)
		large := small
		large.Publishing.Body = make([]byte, earlyBytes+1)
		first, second := stageEarly(t, s, large), stageEarly(t, s, small)
		if first.publication == nil || second.publication != nil {
			t.Errorf("begun: the large one %t, another beside it %t", first.publication != nil, second.publication != nil)
		}
		if err := errors.Join(first.Wait(t.Context()), second.Wait(t.Context())); err != nil {
			t.Error(err)
		}
	})
}

// The transaction's time in other statements does not count: a confirm that came in time is in
// time. A confirm that did not come in time is late, however late Wait is called. It does not
// matter that the context of StageTx has ended since.
func TestTheTimeoutCoversTheStagingOnly(t *testing.T) {
	for size, m := range ofSize {
		synctest.Test(t, func(t *testing.T) {
			b := &slowBroker{takes: 4 * time.Second}
			s, _ := newSender(t, Options{Timeout: 5 * time.Second}, b, nil)
			ctx, cancel := context.WithCancel(t.Context())
			confirmed, err := s.StageTx(ctx, nil, m)
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			time.Sleep(time.Minute) // another statement may take this long
			if err := confirmed.Wait(t.Context()); err != nil {
				t.Errorf("%s, confirmed in time: %v", size, err)
			}
			b.takes = 6 * time.Second
			began := time.Now()
			if _, err := s.SendTx(t.Context(), nil, m); !errors.Is(err, bridge.ErrUnconfirmed) || time.Since(began) != 5*time.Second {
				t.Errorf("%s, a call that waits ends after %v: %v", size, time.Since(began), err)
			}
			late := stageEarly(t, s, m)
			time.Sleep(time.Minute)
			if n := underWay(s); n != 0 {
				t.Errorf("%s: %d bytes are under way after the timeout", size, n)
			}
			for range 2 {
				err := late.Wait(t.Context())
				if !errors.Is(err, bridge.ErrUnconfirmed) || !bridge.Retryable(err) || !strings.Contains(err.Error(), "the transaction must roll back") {
					t.Errorf("%s, confirmed too late: %v", size, err)
				}
			}
		})
	}
}

// A loop that retries while bridge.Retryable returns true ends when its own context is cancelled.
func TestACallerThatGivesUpGetsItsReasonAndFailsNoOther(t *testing.T) {
	gone := errors.New("the customer is gone")
	for size, m := range ofSize {
		synctest.Test(t, func(t *testing.T) {
			s, _ := newSender(t, Options{Timeout: time.Minute}, &slowBroker{takes: 10 * time.Second}, nil)
			first, kept, late, cancelled := stageEarly(t, s, m), stageEarly(t, s, m), stageEarly(t, s, m), stageEarly(t, s, m)
			short, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := late.Wait(short); !errors.Is(err, bridge.ErrUnconfirmed) || !bridge.Retryable(err) {
				t.Errorf("%s, after the deadline: %v", size, err)
			}
			ended, end := context.WithCancelCause(t.Context())
			end(gone)
			for _, ctx := range []context.Context{ended, t.Context()} {
				if err := cancelled.Wait(ctx); !errors.Is(err, gone) || bridge.Retryable(err) {
					t.Errorf("%s, cancelled: %v", size, err)
				}
			}
			if _, err := s.StageTx(ended, nil, m); !errors.Is(err, gone) || bridge.Retryable(err) {
				t.Errorf("%s, cancelled before: %v", size, err)
			}
			for _, one := range []*Staged{first, kept} {
				if err := one.Wait(t.Context()); err != nil {
					t.Errorf("%s, one that was not given up: %v", size, err)
				}
			}
			time.Sleep(time.Minute) // until the last publication has ended: the others may have had a separate one
		})
	}
}

func TestACallerThatGivesUpOnABlockingBrokerGetsTheBrokersReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newSender(t, Options{}, &slowBroker{takes: 2 * time.Second, blocked: "low on memory"}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := s.SendTx(ctx, nil, small)
		if !errors.Is(err, bridge.ErrBlocked) || !errors.Is(err, bridge.ErrUnconfirmed) || !bridge.Retryable(err) || !strings.Contains(err.Error(), "low on memory") {
			t.Errorf("error %v", err)
		}
		time.Sleep(time.Minute) // until the publication has ended
	})
}

// Messages of one moment gather behind the first. When their publication fails, each transaction's
// error names its own message.
func TestTransactionsOfOneMomentTravelTogetherAndFailTogether(t *testing.T) {
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := &slowBroker{takes: time.Second}
			other := small
			other.Publishing.Body = []byte("other")
			if fails {
				b.fails = "other"
			}
			s, _ := newSender(t, Options{Queue: "q"}, b, nil)
			first := stageEarly(t, s, small)
			synctest.Wait()
			var others []*Staged
			for range 40 {
				others = append(others, stageEarly(t, s, other))
			}
			if err := first.Wait(t.Context()); err != nil {
				t.Error(err)
			}
			for _, one := range others {
				err := one.Wait(t.Context())
				if !fails && err != nil {
					t.Error(err)
				}
				var failed *bridge.PublishError
				if fails && (!errors.As(err, &failed) || failed.ID != one.IDs()[0] || failed.Target.RoutingKey != "q" || !errors.Is(err, bridge.ErrNacked)) {
					t.Errorf("message %s: %v", one.IDs()[0], err)
				}
			}
			if n := len(b.published); !fails && n != 2 {
				t.Errorf("%d messages carry 41 transactions", n)
			}
		})
	}
}

// A publication that has queued behind another has the whole timeout: confirms that take more than
// half of it are in time for all.
func TestTheTimeOfAPublicationStartsWhenItIsPublished(t *testing.T) {
	const limit = 5 * time.Second
	synctest.Test(t, func(t *testing.T) {
		s, _ := newSender(t, Options{Timeout: limit}, &slowBroker{takes: 3 * time.Second}, nil)
		first := stageEarly(t, s, small)
		synctest.Wait()
		for _, one := range []*Staged{stageEarly(t, s, small), first} {
			if err := one.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

// When StageTx has returned, the caller may change the messages.
func TestStageTxCopiesItsMessages(t *testing.T) {
	for size, m := range ofSize {
		synctest.Test(t, func(t *testing.T) {
			b := &slowBroker{takes: time.Second}
			s, _ := newSender(t, Options{}, b, nil)
			inner := amqp.Table{"k": "as it was"}
			m.Publishing.Headers = amqp.Table{"inner": inner}
			m.Publishing.Body = bytes.Clone(m.Publishing.Body)
			want := bytes.Clone(m.Publishing.Body)
			staged := stageEarly(t, s, m)
			m.Publishing.Body[0]++
			inner["k"] = "something else"
			staged.IDs()[0] = uuid.Nil
			if err := staged.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := b.published[0]
			if table, _ := got.Headers["inner"].(amqp.Table); !bytes.Equal(got.Body, want) || table["k"] != "as it was" || staged.IDs()[0] == uuid.Nil {
				t.Errorf("%s: staged %q… and %v", size, got.Body[:1], got.Headers)
			}
		})
	}
}

func TestAnInvalidMessageOfABatchRecordsNothing(t *testing.T) {
	s, ledger := newSender(t, Options{}, nil, nil)
	large, noTarget, keyed := []bridge.Message{small, small, small}, []bridge.Message{small, {}, small}, []bridge.Message{withKey}
	large[1].Publishing.Body = make([]byte, 16<<20+1)
	for text, messages := range map[string][]bridge.Message{
		"message 2 of 3: invalid message: body of 16777217 bytes: at most 16777216": large,
		"message 2 of 3: invalid message: no target":                                noTarget,
		"message 1 of 1: invalid message: field OrderKey":                           keyed,
	} {
		_, err := s.SendTx(t.Context(), nil, messages...)
		if !errors.Is(err, bridge.ErrInvalidMessage) || bridge.Retryable(err) || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want %s", err, text)
		}
	}
	if ids, err := s.SendTx(t.Context(), nil); err != nil || len(ids) != 0 {
		t.Errorf("nothing to send: IDs %v, %v", ids, err)
	}
	if ledger.recorded != 0 {
		t.Errorf("%d are recorded", ledger.recorded)
	}
}
