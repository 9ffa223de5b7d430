package consume

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// brokerAcks models the unacked deliveries of a broker's channel. Like RabbitMQ it refuses a tag
// that it does not hold.
type brokerAcks struct {
	t       interface{ Fatalf(string, ...any) }
	unacked []uint64
	acked   []uint64
	nacked  []uint64
	calls   int

	beforeAnswer func() // called before the answer to Qos
}

func (b *brokerAcks) take(tag uint64, multiple bool) []uint64 {
	b.calls++
	at := slices.Index(b.unacked, tag)
	if at < 0 {
		b.t.Fatalf("tag %d is not held: the broker would close the channel", tag)
	}
	from := at
	if multiple {
		from = 0
	}
	taken := slices.Clone(b.unacked[from : at+1])
	b.unacked = slices.Delete(b.unacked, from, at+1)
	return taken
}

func (b *brokerAcks) Ack(tag uint64, multiple bool) error {
	b.acked = append(b.acked, b.take(tag, multiple)...)
	return nil
}

func (b *brokerAcks) Nack(tag uint64, multiple, _ bool) error {
	b.nacked = append(b.nacked, b.take(tag, multiple)...)
	return nil
}

func (b *brokerAcks) Qos(int, int, bool) error {
	if b.beforeAnswer != nil {
		b.beforeAnswer()
	}
	return nil
}

// deliver returns acks that registered n deliveries.
func deliver(b *brokerAcks, n int) *acks {
	a := newAcks(b)
	for i := range n {
		b.unacked = append(b.unacked, uint64(i+1))
		a.register(uint64(i + 1))
	}
	return a
}

// The broker's answer arrives behind deliveries, and a connection stops reading when no goroutine
// receives them.
func TestTheReceiverDoesNotWaitForTheLastAnswer(t *testing.T) {
	for name, end := range map[string]func(*acks) error{"finish": (*acks).finish, "leave": (*acks).finishInOrder} {
		t.Run(name, func(t *testing.T) {
			b := &brokerAcks{t: t}
			a := deliver(b, 1)
			b.beforeAnswer = func() {
				if !a.mu.TryLock() {
					t.Fatal("the next delivery waits for the answer")
				}
				a.mu.Unlock()
				a.register(2)
			}
			if err := end(a); err != nil {
				t.Error(err)
			}
		})
	}
}

// In whatever order messages are done, only these are acked, all of them in the end, and no tag
// twice.
func TestOnlyDoneMessagesAreAckedAndAllOfThemInTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 40
		b := &brokerAcks{t: t}
		a := deliver(b, n)
		done := map[uint64]bool{}
		order := rapid.Permutation(rapid.SliceOfNDistinct(rapid.Uint64Range(1, n), 0, n, rapid.ID[uint64]).Draw(t, "done")).Draw(t, "order")
		for _, tag := range order {
			if rapid.IntRange(0, 9).Draw(t, "back") == 0 {
				a.handBack(tag)
			} else {
				done[tag] = true
				a.done(tag)
			}
			if rapid.Bool().Draw(t, "flush") {
				if err := a.flush(rapid.Bool().Draw(t, "singles")); err != nil {
					t.Fatalf("%v", err)
				}
			}
			for _, tag := range b.acked {
				if !done[tag] {
					t.Fatalf("tag %d is acked and not done", tag)
				}
			}
		}
		if err := a.finish(); err != nil {
			t.Fatalf("%v", err)
		}
		if len(b.acked) != len(done) {
			t.Fatalf("%d acked, %d done", len(b.acked), len(done))
		}
		if len(b.nacked) != n-len(done) || len(b.unacked) != 0 {
			t.Fatalf("%d handed back, %d done of %d; %d are left", len(b.nacked), len(done), n, len(b.unacked))
		}
	})
}

func TestManyAcksTravelAsOne(t *testing.T) {
	b := &brokerAcks{t: t}
	a := deliver(b, 1000)
	tags := rand.Perm(1000)
	for _, tag := range tags {
		a.done(uint64(tag + 1))
	}
	if err := a.flush(false); err != nil {
		t.Fatal(err)
	}
	if b.calls != 1 || len(b.acked) != 1000 {
		t.Errorf("%d calls for %d acks", b.calls, len(b.acked))
	}
}

func TestMessagesBehindAGapAreAckedSinglyAtTheSecondLook(t *testing.T) {
	b := &brokerAcks{t: t}
	a := deliver(b, 3)
	a.done(2, 3) // 1 waits for its transaction
	if err := a.flush(true); err != nil {
		t.Fatal(err)
	}
	if len(b.acked) != 0 {
		t.Errorf("acked %v at the first look", b.acked)
	}
	if err := a.flush(true); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(b.acked, []uint64{2, 3}) {
		t.Errorf("acked %v at the second look", b.acked)
	}
	a.done(1)
	if err := a.flush(false); err != nil {
		t.Fatal(err)
	}
	if len(b.unacked) != 0 {
		t.Errorf("%v are left", b.unacked)
	}
}

// A dead letter that cannot be placed keeps its tag unacked while any number of others pass: memory
// grows with the number of unacked deliveries, not with the number of deliveries.
func TestAMessageThatStaysKeepsNoRecordOfLaterOnes(t *testing.T) {
	const rounds, prefetch = 1000, 100
	b := &brokerAcks{t: t}
	a := newAcks(b)
	tag := uint64(1)
	arrive := func() {
		b.unacked = append(b.unacked, tag)
		a.register(tag)
		tag++
	}
	arrive() // the delivery that stays
	for range rounds {
		first := tag
		for range prefetch - 1 {
			arrive()
		}
		for passing := first; passing < tag; passing++ {
			a.done(passing)
		}
		for range 2 {
			if err := a.flush(true); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(b.unacked) != 1 {
		t.Fatalf("%d are unacked", len(b.unacked))
	}
	if n := len(a.open); n > prefetch {
		t.Errorf("%d states are kept for a prefetch of %d", n, prefetch)
	}
}
