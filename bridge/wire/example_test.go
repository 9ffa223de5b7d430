package wire_test

import (
	"fmt"
	"log"
	"maps"
	"slices"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// The message in the staging queue, and the message that the receiver will see.
func Example() {
	ledger := uuid.MustParse("6f9b4f3e-54a5-4a4c-9c52-3d6f0d9a1b2c") // ledger.Identity()
	staged, err := wire.Encode(bridge.Message{
		ID:         uuid.MustParse("0192f0c1-7d3a-7c55-9b1e-0242ac120002"),
		Exchange:   "orders",
		RoutingKey: "order.placed",
		Publishing: amqp.Publishing{
			ContentType: "application/json",
			Expiration:  "60000",
			Headers:     amqp.Table{"tenant": "north"},
			Body:        []byte(`{"order":7}`),
		},
	}, ledger)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("message-id:", staged.MessageId)
	fmt.Printf("expiration: %q\n", staged.Expiration)
	for _, name := range slices.Sorted(maps.Keys(staged.Headers)) {
		fmt.Printf("%s: %s\n", name, staged.Headers[name])
	}

	parsed, err := wire.Parse(amqp.Delivery{
		MessageId: staged.MessageId, Headers: staged.Headers, ContentType: staged.ContentType, Body: staged.Body,
	})
	if err != nil {
		log.Fatal(err)
	}
	final := parsed.Message.Publishing
	fmt.Printf("\nto %s: %s, expiration %s, headers %v\n", parsed.Target(), final.Body, final.Expiration, final.Headers)
	// Output:
	// message-id: 0192f0c1-7d3a-7c55-9b1e-0242ac120002
	// expiration: ""
	// tenant: north
	// x-bridge-exchange: orders
	// x-bridge-expiration: 60000
	// x-bridge-ledger: 6f9b4f3e-54a5-4a4c-9c52-3d6f0d9a1b2c
	// x-bridge-routing-key: order.placed
	//
	// to exchange "orders" key "order.placed": {"order":7}, expiration 60000, headers map[tenant:north]
}
