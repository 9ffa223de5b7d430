package idempotency_test

import (
	"testing"

	"github.com/twoqueue/twoqueue/idempotency"
)

func TestLatestHandlesOnlyWhatIsNewerThanAllBefore(t *testing.T) {
	r := newReceiver(t, idempotency.Options{})
	latest, err := idempotency.NewLatest(newKeeper(t, r), "shop", versionOf, handBack)
	must(t, err)
	for _, event := range []string{"a:0", "a:3", "b:1", "a:2", "a:3", "a:9223372036854775807", "a:10", "b:2", "b:0"} {
		must(t, latest.Handle(t.Context(), r.db, r.event(event), placeOrder(event)))
	}
	r.wantOrders("a:0 a:3 b:1 a:9223372036854775807 b:2")
	wantStats(t, latest.Stats(), idempotency.Stats{Handled: 5, Stale: 4})
	r.wantSaid("ack 1", "ack 2", "ack 3", "ack 4", "ack 5", "ack 6", "ack 7", "ack 8", "ack 9")
	if n := r.rows("bridge_mark"); n != 2 {
		t.Errorf("%d rows for two entities", n)
	}
}
