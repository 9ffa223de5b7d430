package verifier

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func orderedLane(maxBytes int) *lane {
	l := newLane("q", 100, maxBytes, time.Hour, nil)
	l.line = newLine()
	return l
}

// A lane that is left for want of room must get room by it, for at least the first message
// that has none.
func TestALaneIsLeftForWantOfRoomOnlyWhenThereIsRoom(t *testing.T) {
	const room = 1000
	for name, second := range map[string]int{"both are too large": room * 3 / 4, "one is larger than the share": 2 * room} {
		l := orderedLane(room)
		for tag, size := range []int{room / 3, second} {
			l.receive(amqp.Delivery{DeliveryTag: uint64(tag + 1), Body: make([]byte, size)})
		}
		kept := l.arrived.take(10)
		if len(kept) != 1 || !l.short() {
			t.Fatalf("%s: %d are kept", name, len(kept))
		}
		soon, late := l.opened.Add(exchangePause/2), l.opened.Add(time.Minute)
		if l.worn(late) {
			t.Errorf("%s: it is left while there is no room for the second", name)
		}
		l.took(kept[0].parcel, 1)
		l.done(1, []*parcel{kept[0].parcel})
		if l.worn(soon) {
			t.Errorf("%s: it is left a moment after it was opened", name)
		}
		if !l.worn(late) {
			t.Errorf("%s: it is kept although there is room for the second", name)
		}
	}
}
