package consume

import (
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/wire"
)

// heap returns the bytes of live objects on the heap.
func heap() int {
	least := math.MaxInt
	for range 3 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		least = min(least, int(m.HeapAlloc))
	}
	return least
}

// The messages of many groups, small on the wire and large when decoded, fill the consumer's room.
// Further deliveries rest.
func TestAConsumerCountsTheDecodedSizeOfAGroup(t *testing.T) {
	headers := amqp.Table{}
	for i := range 500 {
		headers[fmt.Sprintf("%03x", i)] = nil
	}
	record := wire.EncodeRecord(amqp.Publishing{MessageId: uuid.NewString(), Headers: with(headers)})
	group := wire.Group(uuid.New(), slices.Repeat([][]byte{record}, 10)...)
	const most = 8 << 20
	c := newConsumer(most)
	before := heap()
	for tag := range uint64(200) {
		c.receive(amqp.Delivery{DeliveryTag: tag + 1, Headers: maps.Clone(group.Headers), Body: slices.Clone(group.Body)})
	}
	var all []amqp.Delivery
	for _, a := range c.arrived.Take(1000) {
		members, err := wire.Members(a.delivery)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range members {
			if _, err := wire.Parse(m); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, members...)
	}
	if held := heap() - before; held > most || len(c.resting) == 0 || len(all) == 0 {
		t.Errorf("%d bytes are held by %d messages, %d groups rest", held, len(all), len(c.resting))
	}
	runtime.KeepAlive(all)
}

func with(headers amqp.Table) amqp.Table {
	all := amqp.Table{wire.HeaderExchange: "", wire.HeaderRoutingKey: "queue"}
	maps.Copy(all, headers)
	return all
}
