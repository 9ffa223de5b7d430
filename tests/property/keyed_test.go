package property_test

import (
	"slices"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// keyed is a message with an order key. Its times are values of history.clock.
type keyed struct {
	key       string
	tx        *transaction
	sent      int // when its SendTx began
	position  int // in this SendTx
	committed int // 0: not committed
}

// before reports whether a must reach the target before b, as package bridge promises.
func (a *keyed) before(b *keyed) bool {
	switch {
	case a.key != b.key:
		return false
	case a.tx == b.tx:
		return a.sent < b.sent || a.sent == b.sent && a.position < b.position
	default:
		return a.committed > 0 && a.committed < b.sent
	}
}

func (h *history) sendKeyed(t *rapid.T) {
	tx := h.pick(t)
	key := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key")
	h.sendIDs(t, tx, key, make([]uuid.UUID, rapid.IntRange(1, 3).Draw(t, "messages"))...)
}

// held reports whether a message may have to wait for another one of its key whose transaction is
// open.
func (h *history) held(k *keyed) bool {
	if k == nil {
		return false
	}
	for _, other := range h.keyed {
		if other.key == k.key && other.sent < k.sent && slices.Contains(h.open, other.tx) {
			return true
		}
	}
	return false
}

// inOrder checks the order of arrival of the first copies.
func (h *history) inOrder(t *rapid.T, order []uuid.UUID) {
	for i, later := range order {
		for _, earlier := range order[:i] {
			a, b := h.keyed[earlier], h.keyed[later]
			if a != nil && b != nil && b.before(a) {
				t.Errorf("message %s of key %q arrived before %s, which had to come first", earlier, a.key, later)
			}
		}
	}
}
