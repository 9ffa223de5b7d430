package consume

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A keyed is a message of a key.
type keyed struct {
	Place
	n int
}

// joined returns a message that has joined its key.
func joined(k *KeyOrder, key string, n int) *keyed {
	m := &keyed{n: n}
	k.Join(&m.Place, key, m)
	return m
}

// In whatever order transactions end and targets confirm: one message of a key is on its way at a
// time, the order is the queue's order, and no message is forgotten.
func TestMessagesOfAKeyPassInTheOrderOfTheQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := newKeyOrder()
		var open, flying []*keyed // not judged, and on their way
		arrived, want, got := 0, map[string][]*keyed{}, map[string][]*keyed{}
		fly := func(m *keyed) {
			key := m.key
			if slices.ContainsFunc(flying, func(o *keyed) bool { return o.key == key }) {
				t.Fatalf("two of key %s are on their way", key)
			}
			flying = append(flying, m)
			got[key] = append(got[key], m)
		}
		pass := func(m *keyed) {
			next := m.Passed()
			m.Finished()
			if next != nil {
				fly(next.(*keyed))
			}
		}
		pick := func(from *[]*keyed) *keyed {
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
			want[m.key] = append(want[m.key], m)
			if m.Ready() {
				fly(m)
			}
		}
		confirm := func() { pass(pick(&flying)) }
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				arrived++
				open = append(open, joined(k, rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "key"), arrived))
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
			slices.SortFunc(want[key], func(a, b *keyed) int { return a.n - b.n })
			if !slices.Equal(got[key], want[key]) {
				t.Fatalf("key %s: %d have passed in another order, or not all of %d", key, len(got[key]), len(want[key]))
			}
		}
		if len(k.keys) != 0 || len(k.UnderWay()) > 0 {
			t.Fatalf("%d keys and %d messages are left", len(k.keys), len(k.moving))
		}
	})
}

func TestAClosedKeyOrderGivesNoTurns(t *testing.T) {
	k := newKeyOrder()
	a, b, c := joined(k, "k", 1), joined(k, "k", 2), joined(k, "other", 3)
	if !a.Ready() || b.Ready() {
		t.Fatal("the first one has the turn")
	}
	k.Close()
	if c.Ready() || a.Passed() != nil {
		t.Error("a message got a turn")
	}
	if len(k.UnderWay()) == 0 {
		t.Error("nothing is on its way, although a is not done")
	}
	a.Finished()
	if len(k.UnderWay()) > 0 {
		t.Error("something is on its way, although a is done")
	}
}
