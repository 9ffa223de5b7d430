package verifier

import (
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier/internal/consume"
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

// The bytes that count as held are about the heap's bytes, however small the parts of a message
// are: the bound of memory depends on it.
func TestHeldIsTheSizeInTheHeap(t *testing.T) {
	ledger := uuid.New()
	countless := func(n int, value any) amqp.Table {
		headers := amqp.Table{}
		for i := range n {
			headers[fmt.Sprintf("%03x", i)] = value
		}
		return headers
	}
	for name, headers := range map[string]amqp.Table{
		"none":          nil,
		"a few":         {"traceparent": strings.Repeat("x", 55), "version": int64(1), "tenant": "t1"},
		"many flags":    countless(1000, true),
		"many texts":    countless(1000, "ab"),
		"a long list":   {"l": make([]any, 3900)},
		"a list":        {"l": slices.Repeat([]any{"a", int32(1), int64(1 << 40)}, 1000)},
		"small tables":  {"l": slices.Repeat([]any{amqp.Table{"a": true}}, 1000)},
		"a large table": {"t": countless(2000, int64(1<<40))},
		"a long text":   {"l": strings.Repeat("x", 50_000)},
	} {
		for _, members := range []int{1, 20} {
			record := wire.EncodeRecord(amqp.Publishing{MessageId: uuid.NewString(), Headers: with(headers)})
			group := wire.Group(ledger, slices.Repeat([][]byte{record}, members)...)
			groups := 40 / members
			counted := 0
			var all []*message
			before := heap()
			for range groups {
				d := amqp.Delivery{Headers: maps.Clone(group.Headers), MessageId: group.MessageId, Body: slices.Clone(group.Body)}
				counted += wire.Held(d)
				parts, err := wire.Members(d)
				if err != nil {
					t.Fatal(err)
				}
				u := &consume.Unacked{}
				for _, part := range parts {
					m := &message{unacked: u, delivery: part, received: time.Now()}
					if m.staged, err = wire.Parse(part); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					all = append(all, m)
				}
			}
			held := heap() - before
			t.Logf("%s, %d in a group: counted %d, held %d, on the wire %d", name, members, counted, held, groups*len(group.Body))
			if held > counted+counted/4 {
				t.Errorf("%s, %d in a group: held %d, counted %d", name, members, held, counted)
			}
			if alone := wire.Held(all[0].delivery); members > 1 && alone*members*groups > 2*counted {
				t.Errorf("%s: %d counted alone, %d in a group", name, alone, counted/members/groups)
			}
			runtime.KeepAlive(all)
		}
	}
}

func with(headers amqp.Table) amqp.Table {
	all := amqp.Table{wire.HeaderExchange: "", wire.HeaderRoutingKey: "queue"}
	maps.Copy(all, headers)
	return all
}
