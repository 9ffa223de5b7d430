package sender

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// A carryingLedger remembers the entries that were recorded.
type carryingLedger struct {
	noLedger
	before  func() error // called first in Record
	entries []driver.Entry
}

func (*carryingLedger) Features() driver.Features { return driver.Features{Carries: true} }

func (l *carryingLedger) Identity() uuid.UUID {
	return uuid.MustParse("6f9b4f3e-54a5-4a4c-9c52-3d6f0d9a1b2c")
}

func (l *carryingLedger) Record(_ context.Context, _ bridge.Tx, entries []driver.Entry) error {
	if l.before != nil {
		if err := l.before(); err != nil {
			return err
		}
	}
	l.entries = append(l.entries, entries...)
	return nil
}

// unpublished returns for each entry that carries a message whether it is unpublished.
func (l *carryingLedger) unpublished() (out []bool) {
	for _, e := range l.entries {
		if e.Message != nil {
			out = append(out, e.Unpublished)
		}
	}
	return out
}

// A scriptedBroker answers as the test defines, and records the time and the messages of each call.
type scriptedBroker struct {
	plain   bool // accepts messages that no row carries too, and does not parse them
	blocked string
	closed  chan struct{}

	mu     sync.Mutex
	answer func(ctx context.Context, bodies []string) error // nil: it confirms
	asked  []time.Time
	got    [][]string // for each staged message, its members' bodies
}

func (b *scriptedBroker) Blocked() string { return b.blocked }

func (b *scriptedBroker) Done() <-chan struct{} { return b.closed }

func (b *scriptedBroker) Publish(ctx context.Context, messages []bridge.Outgoing) error {
	var bodies []string
	for _, m := range messages {
		if b.plain {
			continue
		}
		members, err := wire.Members(amqp.Delivery{MessageId: m.MessageId, Headers: m.Headers, Body: m.Body})
		if err != nil {
			return err
		}
		for _, member := range members {
			staged, err := wire.Parse(member)
			if err != nil || !staged.Carried {
				return fmt.Errorf("%w: %v", errors.ErrUnsupported, err)
			}
			bodies = append(bodies, string(staged.Message.Publishing.Body))
		}
	}
	b.mu.Lock()
	b.asked, b.got = append(b.asked, time.Now()), append(b.got, bodies)
	answer := b.answer
	b.mu.Unlock()
	if answer == nil {
		return nil
	}
	return answer(ctx, bodies)
}

func (b *scriptedBroker) answers(with func(context.Context, []string) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = with
}

// times returns how often the broker was asked, when all goroutines are idle.
func (b *scriptedBroker) times() int { return len(b.groups()) }

// groups returns the bodies of each staged message, when all goroutines are idle.
func (b *scriptedBroker) groups() [][]string {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.got
}

// silent never confirms.
func silent(ctx context.Context, _ []string) error {
	<-ctx.Done()
	return &bridge.PublishError{Err: fmt.Errorf("%w: %w", bridge.ErrUnconfirmed, context.Cause(ctx))}
}

// away answers at once that there is no connection.
func away(context.Context, []string) error { return bridge.ErrUnavailable }

// carrying returns a sender that carries, its ledger and its log.
func carrying(t *testing.T, opts Options, b Broker) (*Sender, *carryingLedger, *bytes.Buffer) {
	t.Helper()
	ledger, log := new(carryingLedger), new(bytes.Buffer)
	opts.Logger = slog.New(slog.NewTextHandler(log, nil))
	s, err := New(ledger, new(bridge.Broker), &opts)
	if err != nil {
		t.Fatal(err)
	}
	s.carrier.stager.broker = b
	return s, ledger, log
}

// text returns a message whose body is text.
func text(body string) bridge.Message {
	return bridge.Message{RoutingKey: "target", Publishing: amqp.Publishing{Body: []byte(body)}}
}

func send(t *testing.T, s *Sender, bodies ...string) {
	t.Helper()
	messages := make([]bridge.Message, len(bodies))
	for i, body := range bodies {
		messages[i] = text(body)
	}
	if _, err := s.SendTx(t.Context(), nil, messages...); err != nil {
		t.Fatal(err)
	}
}

// flush waits until no message is on its way, even while the broker is out.
func flush(t *testing.T, s *Sender) {
	t.Helper()
	if idle := s.carrier.whenIdle(); idle != nil {
		<-idle
	}
	synctest.Wait() // for the log
}

// Neither SendTx, StageTx nor TxMessages waits for a broker that is silent.
func TestACommitDoesNotWaitForCarriedMessages(t *testing.T) {
	for _, carry := range []Carry{CarrySmall, CarryAlways} {
		synctest.Test(t, func(t *testing.T) {
			s, ledger, _ := carrying(t, Options{Carry: carry}, &scriptedBroker{answer: silent})
			began := time.Now()
			send(t, s, "1", "2")
			staged, err := s.StageTx(t.Context(), nil, text("3"))
			if err != nil {
				t.Fatal(err)
			}
			o := s.TxMessages(t.Context(), nil)
			if _, err := o.Send(text("4")); err != nil {
				t.Fatal(err)
			}
			if _, err := o.Stage(t.Context(), text("5")); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(staged.Wait(t.Context()), o.Confirm(t.Context())); err != nil {
				t.Fatal(err)
			}
			if waited := time.Since(began); waited != 0 {
				t.Errorf("the transactions have waited %v", waited)
			}
			if got := fmt.Sprint(ledger.unpublished()); got != "[false false false false false]" {
				t.Errorf("unpublished %s", got)
			}
			flush(t, s)
		})
	}
}

// The row holds the message as it is published, and is there first (rule 1).
func TestTheRowOfACarriedMessageComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := new(scriptedBroker)
		s, ledger, _ := carrying(t, Options{}, b)
		ledger.before = func() error {
			time.Sleep(time.Minute)
			if got := b.groups(); len(got) > 0 {
				t.Errorf("published before the row: %v", got)
			}
			return nil
		}
		m := text("body")
		m.ID, m.Publishing.Priority, m.Publishing.Headers = uuid.New(), 7, amqp.Table{"a": "b"}
		if _, err := s.SendTx(t.Context(), nil, m); err != nil {
			t.Fatal(err)
		}
		if got := b.groups(); len(got) != 1 || got[0][0] != "body" {
			t.Errorf("published %v", got)
		}
		row, err := wire.ReadRecord(ledger.Identity(), ledger.entries[0].Message)
		if err != nil || ledger.entries[0].ID != m.ID || row.ID != m.ID || !row.Carried || row.StagedAt.IsZero() ||
			row.Message.Publishing.Priority != 7 || row.Message.Publishing.Headers["a"] != "b" {
			t.Errorf("the row holds %+v (%v)", row, err)
		}
	})
}

func TestAMessageWhoseRowFailsIsNotPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := new(scriptedBroker)
		s, ledger, _ := carrying(t, Options{}, b)
		ledger.before = func() error { return bridge.ErrDuplicateID }
		if _, err := s.SendTx(t.Context(), nil, text("1")); !errors.Is(err, bridge.ErrDuplicateID) {
			t.Errorf("error %v", err)
		}
		ledger.before = func() error { panic("a bug in a driver") }
		func() {
			defer func() { _ = recover() }()
			_, err := s.SendTx(t.Context(), nil, text("2"))
			t.Errorf("SendTx has returned %v", err)
		}()
		if got := b.groups(); len(got) > 0 {
			t.Errorf("published %v", got)
		}
		flush(t, s) // no message is held
	})
}

// A transaction waits for its messages that are too large or have an order key, and for no others.
func TestATransactionWaitsForMessagesThatAreNotCarried(t *testing.T) {
	size := func(n int) bridge.Message {
		m := text(strings.Repeat("x", n))
		m.ID = uuid.New() // so that all have the same headers
		return m
	}
	key := text("ordered")
	key.OrderKey = "key"
	// A record has some bytes more than the body.
	s, ledger, _ := carrying(t, Options{}, new(scriptedBroker))
	if _, err := s.SendTx(t.Context(), nil, size(1000)); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	more := len(ledger.entries[0].Message) - 1000
	for name, c := range map[string]struct {
		carry Carry
		m     bridge.Message
		want  bool
	}{
		"small":               {CarrySmall, size(10), true},
		"just small":          {CarrySmall, size(2000 - more), true},
		"just large":          {CarrySmall, size(2001 - more), false},
		"large":               {CarrySmall, size(2001), false},
		"large, but always":   {CarryAlways, size(1 << 20), true},
		"ordered":             {CarrySmall, key, false},
		"ordered, but always": {CarryAlways, key, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, ledger, _ := carrying(t, Options{Carry: c.carry, CarryBytes: 2000, OrderedShards: 1}, new(scriptedBroker))
			b := &slowBroker{takes: time.Second / 2}
			s.stager.broker = b
			for _, one := range s.ordered.stagers {
				one.broker = b
			}
			began := time.Now()
			if _, err := s.SendTx(t.Context(), nil, text("small"), c.m); err != nil {
				t.Fatal(err)
			}
			carried, waited := ledger.entries[1].Message != nil, time.Since(began)
			if carried != c.want || ledger.entries[0].Message == nil || waited != map[bool]time.Duration{true: 0, false: b.takes}[c.want] {
				t.Errorf("%s: carried %t, waited %v", name, carried, waited)
			}
			for _, m := range b.published {
				if _, ok := m.Headers[wire.HeaderCarried]; ok || bytes.Contains(m.Body, []byte(wire.HeaderCarried)) {
					t.Errorf("%s: a message without a copy in its row says that it is carried", name)
				}
			}
			flush(t, s)
		})
	}
}

// Beyond the bound only the row is written: no copy of an unpublished message may be anywhere.
func TestCarriedMessagesInMemoryAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &scriptedBroker{answer: func(context.Context, []string) error { time.Sleep(time.Second / 2); return nil }}
		s, ledger, log := carrying(t, Options{Carry: CarryAlways, CarryPendingBytes: 10_000}, b)
		body := strings.Repeat("x", 4000)
		send(t, s, body, body, body)
		send(t, s, body)
		send(t, s, "little")
		flush(t, s)
		send(t, s, strings.Repeat("x", 20_000)) // alone it may exceed the bound
		send(t, s, "little")
		flush(t, s)
		if got, want := fmt.Sprint(ledger.unpublished()), "[false false true true false false true]"; got != want {
			t.Errorf("unpublished %s, want %s", got, want)
		}
		n := 0
		for _, group := range b.groups() {
			n += len(group)
		}
		if n != 4 || log.Len() > 0 {
			t.Errorf("%d messages are published; the log says %q", n, log)
		}
	})
}

// After a nack, a return or a lost channel the group is published again, and the caller gets no
// error.
func TestAGroupThatFailsIsPublishedAgain(t *testing.T) {
	for _, failure := range []error{bridge.ErrNacked, bridge.ErrReturned, bridge.ErrUnconfirmed, bridge.ErrUnavailable} {
		synctest.Test(t, func(t *testing.T) {
			b := new(scriptedBroker)
			b.answer = func(context.Context, []string) error {
				if len(b.asked) < 4 {
					return &bridge.PublishError{Err: failure}
				}
				return nil
			}
			s, ledger, log := carrying(t, Options{Queue: "q"}, b)
			began := time.Now()
			send(t, s, "1", "2")
			flush(t, s)
			if took := time.Since(began); took < 100*time.Millisecond || took > 3*time.Second {
				t.Errorf("%v: four attempts take %v", failure, took)
			}
			send(t, s, "3")
			if got, want := fmt.Sprint(b.groups()), "[[1 2] [1 2] [1 2] [1 2] [3]]"; got != want {
				t.Errorf("%v: published %s, want %s", failure, got, want)
			}
			if got := fmt.Sprint(ledger.unpublished()); got != "[false false false]" {
				t.Errorf("%v: unpublished %s", failure, got)
			}
			text := log.String()
			if strings.Count(text, "messages are not published") != 1 || strings.Count(text, "published again") != 1 || strings.Count(text, "\n") != 2 ||
				(failure == bridge.ErrReturned) != strings.Contains(text, "there is no queue") {
				t.Errorf("%v: the log is %q", failure, text)
			}
			flush(t, s)
		})
	}
}

// After that time a verifier is about to stage the message.
func TestACarriedMessageIsGivenUpAfterAWhile(t *testing.T) {
	for name, answer := range map[string]func(context.Context, []string) error{"silent": silent, "away": away} {
		synctest.Test(t, func(t *testing.T) {
			const limit = 4 * time.Second
			b := &scriptedBroker{answer: answer}
			s, _, _ := carrying(t, Options{Timeout: limit}, b)
			began := time.Now()
			send(t, s, "1")
			flush(t, s)
			took, attempts := time.Since(began), len(b.groups())
			if took < driver.StageAgainAfter || took > driver.StageAgainAfter+limit || attempts < 3 {
				t.Errorf("%s: given up after %v and %d attempts", name, took, attempts)
			}
			for _, at := range b.asked {
				if at.Sub(began) >= driver.StageAgainAfter {
					t.Errorf("%s: published after %v", name, at.Sub(began))
				}
			}
			time.Sleep(time.Minute)
			if len(b.groups()) != attempts {
				t.Errorf("%s: published after it was given up", name)
			}
		})
	}
}

// During an outage rows are unpublished, one message per carryProbe finds the end, and the log has
// a line for the beginning and one for the end.
func TestAnOutageLeavesMessagesToTheirRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &scriptedBroker{answer: away}
		s, ledger, log := carrying(t, Options{}, b)
		send(t, s, "first")
		synctest.Wait()
		send(t, s, "while the first is tried again")
		flush(t, s) // it is given up
		before := len(b.groups())
		time.Sleep(2 * carryProbe)
		send(t, s, "probe", "no probe")
		synctest.Wait()
		for range 20 {
			send(t, s, "no probe either")
			time.Sleep(100 * time.Millisecond)
		}
		if got := b.groups()[before:]; len(got) > 10 || got[0][0] != "probe" {
			t.Errorf("published %v", got)
		}
		for i, unpublished := range ledger.unpublished() {
			if want := i != 0 && i != 2; unpublished != want {
				t.Errorf("entry %d: unpublished %t", i, unpublished)
			}
		}
		b.answers(nil)
		flush(t, s)
		send(t, s, "afterwards")
		if ledger.entries[len(ledger.entries)-1].Unpublished {
			t.Error("unpublished after the outage")
		}
		if text := log.String(); strings.Count(text, "not published") != 1 || strings.Count(text, "published again") != 1 || strings.Count(text, "\n") != 2 {
			t.Errorf("the log is %q", text)
		}
		flush(t, s)
	})
}

// If no message is held, one message a second finds the end of an outage.
func TestOneMessageASecondFindsTheEndOfAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forbidden := &amqp.Error{Code: amqp.AccessRefused, Reason: "no right", Server: true, Recover: true}
		b := &scriptedBroker{answer: func(context.Context, []string) error {
			return &bridge.PublishError{Err: fmt.Errorf("%w: %w", bridge.ErrUnconfirmed, forbidden)}
		}}
		s, ledger, log := carrying(t, Options{}, b)
		for range 100 {
			send(t, s, "1")
			time.Sleep(100 * time.Millisecond)
		}
		published := 0
		for _, unpublished := range ledger.unpublished() {
			if !unpublished {
				published++
			}
		}
		if published < 5 || published > 10 || len(b.groups()) > carryRefusals*published {
			t.Errorf("%d messages are published %d times in 10 s", published, len(b.groups()))
		}
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "no right") {
			t.Errorf("the log is %q", text)
		}
		flush(t, s)
	})
}

func TestABrokerThatBlocksIsNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &scriptedBroker{blocked: "low on memory"}
		s, ledger, log := carrying(t, Options{}, b)
		send(t, s, "1")
		time.Sleep(time.Minute)
		send(t, s, "2", "3")
		if got := b.groups(); len(got) > 0 || fmt.Sprint(ledger.unpublished()) != "[true true true]" {
			t.Errorf("published %v, unpublished %v", got, ledger.unpublished())
		}
		b.blocked = ""
		time.Sleep(carryProbe)
		send(t, s, "4")
		flush(t, s)
		if got := fmt.Sprint(b.groups()); got != "[[4]]" {
			t.Errorf("published %s", got)
		}
		if text := log.String(); strings.Count(text, "low on memory") != 1 || strings.Count(text, "published again") != 1 || strings.Count(text, "\n") != 2 {
			t.Errorf("the log is %q", text)
		}
	})
}

// A message that the broker refuses makes its group fail only once.
func TestARefusedMessageIsLeftToItsRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := new(scriptedBroker)
		b.answer = func(_ context.Context, bodies []string) error {
			if strings.Contains(strings.Join(bodies, " "), "bad") {
				return &amqp.Error{Code: amqp.PreconditionFailed, Reason: "too large", Server: true, Recover: true}
			}
			return nil
		}
		s, _, _ := carrying(t, Options{}, b)
		send(t, s, "bad", "1", "2")
		flush(t, s)
		times := make(map[string]int)
		for _, group := range b.groups()[1:] {
			if len(group) != 1 {
				t.Errorf("%v are together again", group)
			}
			times[group[0]]++
		}
		if got := fmt.Sprint(times); got != "map[1:1 2:1 bad:1]" {
			t.Errorf("published again: %s", got)
		}
	})
}

// Messages that are sent while the broker refuses another one are published at once.
func TestARefusedMessageHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := new(scriptedBroker)
		b.answer = func(_ context.Context, bodies []string) error {
			if len(bodies[0]) > 20_000 {
				return &amqp.Error{Code: amqp.PreconditionFailed, Reason: "too large", Server: true, Recover: true}
			}
			return nil
		}
		s, ledger, log := carrying(t, Options{Carry: CarryAlways}, b)
		began := time.Now()
		for range 10 {
			send(t, s, strings.Repeat("x", 30_000), "1")
			synctest.Wait()
			send(t, s, "2", "3")
			flush(t, s)
		}
		if slices.Contains(ledger.unpublished(), true) || time.Since(began) > 20*carryGather {
			t.Errorf("unpublished %v, after %v", ledger.unpublished(), time.Since(began))
		}
		for i, e := range ledger.entries {
			if named := strings.Contains(log.String(), e.ID.String()); named != (i%4 == 0) {
				t.Errorf("message %d is named: %t", i, named)
			}
		}
		if n := strings.Count(log.String(), "\n"); n != 10 {
			t.Errorf("%d lines in the log %s", n, log)
		}
	})
}

// If no publication is under way, a message does not wait. Under load messages gather, for a moment
// or until a group is full.
func TestCarriedMessagesGatherUnderLoad(t *testing.T) {
	const confirm = time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		b := &scriptedBroker{answer: func(context.Context, []string) error { time.Sleep(confirm); return nil }}
		s, _, _ := carrying(t, Options{}, b)
		began := time.Now()
		for range 3 {
			send(t, s, "idle")
			synctest.Wait()
			flush(t, s)
		}
		if len(b.groups()) != 3 || time.Since(began) != 3*confirm {
			t.Errorf("idle: published %v in %v", b.groups(), time.Since(began))
		}
		for range 3000 {
			send(t, s, "load")
			time.Sleep(100 * time.Microsecond)
		}
		flush(t, s)
		// Each publication takes the time of its confirm and the time to gather.
		if n := len(b.groups()) - 3; n < 30 || n > 40 {
			t.Errorf("3000 messages in 300 ms travel in %d groups", n)
		}
		before := len(b.groups())
		for range 1000 {
			send(t, s, strings.Repeat("x", 7000))
			time.Sleep(100 * time.Microsecond)
		}
		flush(t, s)
		if n := len(b.groups()) - before; n > 400 {
			t.Errorf("1000 messages of 7000 bytes travel in %d groups", n)
		}
		if took := b.asked[len(b.asked)-1].Sub(b.asked[before]); took > 110*time.Millisecond {
			t.Errorf("1000 messages in 100 ms take %v", took)
		}
	})
}

func TestGroupsOfOneRoundAreJudgedApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := false
		b := &scriptedBroker{answer: func(_ context.Context, bodies []string) error {
			time.Sleep(time.Millisecond)
			if bodies[0][0] == 'b' && !failed {
				failed = true
				return &bridge.PublishError{Err: bridge.ErrNacked}
			}
			return nil
		}}
		s, _, _ := carrying(t, Options{Carry: CarryAlways}, b)
		body := strings.Repeat("x", groupBytes)
		send(t, s, "a"+body, "b"+body, "c"+body)
		flush(t, s)
		if n := len(b.groups()); n != 4 {
			t.Errorf("published %d times", n)
		}
		if gap := b.asked[2].Sub(b.asked[0]); gap != 0 {
			t.Errorf("the third waits %v", gap)
		}
	})
}

func TestFlushWaitsUntilNothingIsOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := carrying(t, Options{}, &scriptedBroker{answer: func(context.Context, []string) error { time.Sleep(time.Second); return nil }})
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Flush(ended); err != nil {
			t.Errorf("nothing is on its way: %v", err)
		}
		began := time.Now()
		send(t, s, "1")
		synctest.Wait()
		send(t, s, "2")
		if err := s.Flush(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that has ended: %v", err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if err := s.Flush(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a context that ends: %v", err)
		}
		var flushes sync.WaitGroup
		for range 2 {
			flushes.Go(func() {
				if err := s.Flush(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		flushes.Wait()
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("flushed after %v", took)
		}
		never, _ := newSender(t, Options{Carry: CarryNever}, nil, nil)
		if err := never.Flush(ended); err != nil {
			t.Errorf("no message is carried: %v", err)
		}
	})
}

// Messages that the process still holds are left to their rows as soon as the Broker is closed.
func TestAClosedBrokerEndsTheCarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &scriptedBroker{answer: func(context.Context, []string) error {
			time.Sleep(time.Second)
			return fmt.Errorf("%w: broker is closed: %w", bridge.ErrUnavailable, context.Canceled)
		}}
		s, _, _ := carrying(t, Options{}, b)
		began := time.Now()
		send(t, s, "1")
		synctest.Wait()
		send(t, s, "2")
		flush(t, s)
		if took := time.Since(began); took != time.Second || len(b.groups()) != 1 {
			t.Errorf("ended after %v, published %v", took, b.groups())
		}
	})
}

// A pause between two attempts does not delay that.
func TestAClosedBrokerEndsTheCarrierBetweenTwoAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &scriptedBroker{closed: make(chan struct{})}
		b.answer = func(context.Context, []string) error {
			select {
			case <-b.closed:
				return fmt.Errorf("%w: broker is closed: %w", bridge.ErrUnavailable, context.Canceled)
			default:
				return bridge.ErrUnavailable
			}
		}
		s, _, _ := carrying(t, Options{}, b)
		send(t, s, "1")
		for attempts := 0; attempts < 5; attempts = len(b.groups()) {
			time.Sleep(time.Millisecond)
		}
		close(b.closed)
		synctest.Wait()
		s.carrier.mu.Lock()
		defer s.carrier.mu.Unlock()
		if s.carrier.running || s.carrier.held > 0 {
			t.Errorf("runs: %t, %d bytes are held", s.carrier.running, s.carrier.held)
		}
	})
}

// The end of a process waits for a confirm that may come, but not for a broker that is out.
func TestFlushDoesNotWaitForABrokerThatIsOut(t *testing.T) {
	confirm := func(after time.Duration) func(context.Context, []string) error {
		return func(context.Context, []string) error { time.Sleep(after); return nil }
	}
	for name, c := range map[string]struct {
		answer func(context.Context, []string) error
		ends   time.Duration // when the context ends
		took   time.Duration
		why    error
	}{
		"away":                   {away, time.Hour, 0, bridge.ErrUnavailable},
		"no answer":              {silent, time.Hour, outAfter + flushSlow, bridge.ErrUnconfirmed},
		"no answer, in no time":  {silent, time.Second / 2, time.Second / 2, context.DeadlineExceeded},
		"no answer, in time":     {silent, 2 * time.Second, 2 * time.Second, context.DeadlineExceeded},
		"a confirm that is late": {confirm(4 * time.Second), time.Hour, 4 * time.Second, nil},
		"a missing queue":        {failing(&amqp.Error{Code: amqp.NotFound}), time.Hour, driver.StageAgainAfter, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _, _ := carrying(t, Options{}, &scriptedBroker{answer: c.answer})
				send(t, s, "1")
				ctx, cancel := context.WithTimeout(t.Context(), c.ends)
				defer cancel()
				began := time.Now()
				err := s.Flush(ctx)
				if took := time.Since(began); took < c.took || took > c.took+carryProbe || !errors.Is(err, c.why) {
					t.Errorf("after %v: %v", took, err)
				}
				flush(t, s)
			})
		})
	}
}
