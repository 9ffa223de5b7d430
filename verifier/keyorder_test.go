package verifier

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/twoqueue/twoqueue/bridge/wire"
)

func keyed(key string, n int) *message {
	m := &message{staged: wire.Staged{}}
	m.staged.OrderKey = key
	m.delivery.MessageId = fmt.Sprint(n)
	return m
}

// In whatever order transactions end and targets confirm: one message of a key is on its way at a
// time, the order is the queue's order, and no message is forgotten.
func TestMessagesOfAKeyPassInTheOrderOfTheQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := newKeyOrder()
		var open, flying []*message // not judged, and on their way
		arrived, want, got := 0, map[string][]*message{}, map[string][]*message{}
		fly := func(m *message) {
			key := m.staged.OrderKey
			if slices.ContainsFunc(flying, func(o *message) bool { return o.staged.OrderKey == key }) {
				t.Fatalf("two of key %s are on their way", key)
			}
			flying = append(flying, m)
			got[key] = append(got[key], m)
		}
		pass := func(m *message) {
			next := k.passed(m)
			k.finished(m)
			if next != nil {
				fly(next)
			}
		}
		pick := func(from *[]*message) *message {
			i := rapid.IntRange(0, len(*from)-1).Draw(t, "which")
			m := (*from)[i]
			*from = slices.Delete(*from, i, i+1)
			return m
		}
		judge := func() {
			m := pick(&open)
			if rapid.IntRange(0, 3).Draw(t, "fate") == 0 { // rolled back
				pass(m)
				return
			}
			want[m.staged.OrderKey] = append(want[m.staged.OrderKey], m)
			if k.ready(m) {
				fly(m)
			}
		}
		confirm := func() { pass(pick(&flying)) }
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				arrived++
				m := keyed(rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "key"), arrived)
				k.join(m)
				open = append(open, m)
			case 1:
				if len(open) > 0 {
					judge()
				}
			case 2:
				if len(flying) > 0 {
					confirm()
				}
			}
		}
		for len(open) > 0 {
			judge()
		}
		for len(flying) > 0 {
			confirm()
		}
		for key := range want {
			slices.SortFunc(want[key], func(a, b *message) int {
				var x, y int
				fmt.Sscan(a.id(), &x)
				fmt.Sscan(b.id(), &y)
				return x - y
			})
			if !slices.Equal(got[key], want[key]) {
				t.Fatalf("key %s: %d have passed in another order, or not all of %d", key, len(got[key]), len(want[key]))
			}
		}
		if len(k.keys) != 0 || len(k.underWay()) > 0 {
			t.Fatalf("%d keys and %d messages are left", len(k.keys), len(k.moving))
		}
	})
}

func TestAClosedKeyOrderGivesNoTurns(t *testing.T) {
	k := newKeyOrder()
	a, b, c := keyed("k", 1), keyed("k", 2), keyed("other", 3)
	for _, m := range []*message{a, b, c} {
		k.join(m)
	}
	if !k.ready(a) || k.ready(b) {
		t.Fatal("the first one has the turn")
	}
	k.close()
	if k.ready(c) || k.passed(a) != nil {
		t.Error("a message got a turn")
	}
	if len(k.underWay()) == 0 {
		t.Error("nothing is on its way, although a is not done")
	}
	k.finished(a)
	if len(k.underWay()) > 0 {
		t.Error("something is on its way, although a is done")
	}
}
