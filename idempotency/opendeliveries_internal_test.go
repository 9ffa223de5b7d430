package idempotency

import (
	"fmt"
	"slices"
	"testing"
)

func TestABatchIsAckedWithOneWordUpToTheFirstOpenDelivery(t *testing.T) {
	for _, c := range []struct {
		acked, batch []uint64
		want         []string
	}{
		{nil, []uint64{3, 1, 2}, []string{"3 true"}},
		{nil, []uint64{1, 2, 4, 6}, []string{"2 true", "4 false", "6 false"}},
		{nil, []uint64{2, 3}, []string{"2 false", "3 false"}},
		{[]uint64{1}, []uint64{2, 3}, []string{"3 true"}},
		{[]uint64{1, 3}, []uint64{2, 4, 6}, []string{"4 true", "6 false"}},
		{[]uint64{1, 2, 3}, []uint64{4, 5, 6}, []string{"6 true"}},
	} {
		var said []string
		open := newOpenDeliveries(func(tag uint64, multiple bool) error {
			said = append(said, fmt.Sprint(tag, " ", multiple))
			return nil
		}, 1, 6)
		for tag := range uint64(6) {
			open.add(&openDelivery{tag: tag + 1})
		}
		for _, tag := range c.acked {
			_ = open.acknowledge(tag, false, func() error { return nil })
		}
		all, err := open.ackBatch(c.batch)
		if err != nil || !slices.Equal(said, c.want) || len(all) != len(c.batch) {
			t.Errorf("%d acked before, acks of %d are %q, %v, must be %q", c.acked, c.batch, said, err, c.want)
		}
	}
}

// A nack of many deliveries ends none that was acked, and the broker gets the remaining acks.
func TestANackOfManyKeepsTheGatheredAcks(t *testing.T) {
	var said []string
	open := newOpenDeliveries(func(tag uint64, multiple bool) error {
		said = append(said, fmt.Sprint("ack ", tag, " ", multiple))
		return nil
	}, 1, 100)
	for tag := range uint64(6) {
		open.add(&openDelivery{tag: tag + 1})
	}
	for _, tag := range []uint64{2, 5} {
		if err := open.ackOne(tag, func() bool { return false }); err != nil {
			t.Fatal(err)
		}
	}
	err := open.acknowledge(3, true, func() error {
		said = append(said, "nack 3 true")
		return nil
	})
	if want := []string{"ack 2 false", "nack 3 true"}; err != nil || !slices.Equal(said, want) {
		t.Errorf("sent %q, %v, must be %q", said, err, want)
	}
	if err := open.flush(); err != nil || said[len(said)-1] != "ack 5 false" || open.acked != 0 || len(open.all) != 2 {
		t.Errorf("sent %q, %v, open are %+v", said, err, open)
	}
}

func TestAcksGatherWhileEnoughDeliveriesAreAtHand(t *testing.T) {
	const workers, prefetch = 2, 16 // so at most 4 acks gather
	never := func() bool { return false }
	var said []string
	open := newOpenDeliveries(func(tag uint64, multiple bool) error {
		said = append(said, fmt.Sprint(tag, " ", multiple))
		return nil
	}, workers, prefetch)
	ack := func(over func() bool, tags ...uint64) {
		for _, tag := range tags {
			if err := open.ackOne(tag, over); err != nil {
				t.Error(err)
			}
		}
	}
	want := func(what string, acks ...string) {
		t.Helper()
		if !slices.Equal(said, acks) {
			t.Errorf("%s: said %q, must be %q", what, said, acks)
		}
		said = nil
	}
	for tag := range uint64(prefetch) {
		open.add(&openDelivery{tag: tag + 1})
	}
	ack(never, 2, 1, 4)
	want("others are at hand")
	ack(never, 3)
	want("four", "4 true")
	ack(never, 5, 7)
	if err := open.flush(); err != nil {
		t.Error(err)
	}
	want("the time is over", "5 true", "7 false")
	ack(never, 8)
	if err := open.acknowledge(9, true, func() error { said = append(said, "nack up to 9"); return nil }); err != nil {
		t.Error(err)
	}
	want("a multiple nack", "8 false", "nack up to 9")
	ack(never, 10)
	ack(func() bool { return true }, 12)
	want("the session is over", "10 true", "12 false")
	ack(never, 11, 13, 14)
	want("two workers have one delivery each", "14 true")
	ack(never, 15)
	want("and one of them none", "15 true")
}
