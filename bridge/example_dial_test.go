package bridge_test

import (
	"context"
	"errors"
	"log"

	"github.com/twoqueue/twoqueue/bridge"
)

// Connect, and make the queues, or check the existing ones.
func ExampleDial() {
	ctx := context.Background()
	broker, err := bridge.Dial(ctx, "amqp://shop:secret@localhost/", &bridge.BrokerOptions{Name: "shop"})
	if errors.Is(err, bridge.ErrCredentials) {
		log.Fatal("the broker refuses user, password or virtual host: ", err)
	}
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()

	err = bridge.Topology{Queue: "twoqueue"}.Declare(ctx, broker)
	if mismatch := new(bridge.QueueMismatch); errors.As(err, &mismatch) {
		log.Fatalf("queue %s exists with another %s", mismatch.Queue, mismatch.Property)
	}
	if err != nil {
		log.Fatal(err)
	}
}
