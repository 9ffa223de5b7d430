package servertest

import (
	"fmt"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Features are what differs between the releases of RabbitMQ that tests run on. A test
// asks for the difference, never for the version.
type Features struct {
	// DeliveryLimit is that of a quorum queue that was declared without one; 0 is none.
	DeliveryLimit int
	// CountHeader is the header that a quorum queue adds to what a nack has handed back.
	// Where it is not x-delivery-count a nack does not count towards a delivery limit, as a
	// reject and a lost channel do everywhere.
	CountHeader string
	// TimeoutCancels says that the consumer timeout cancels the consumer and leaves the
	// channel open, where late acks are ignored.
	TimeoutCancels bool
	// MinorityPauses says that a node which sees no majority of its cluster can be told
	// to end its connections (pause_minority). Otherwise it keeps its clients, and they
	// hear nothing.
	MinorityPauses bool
	// NacksForSilentQueue says that a message to a quorum queue that does not answer is nacked
	// after a minute, if it is the first one of its channel.
	NacksForSilentQueue bool
	// LookNeedsRight says that who has no right to a queue is not told that it exists.
	LookNeedsRight bool
}

// The sources: RabbitMQ's guides to quorum queues ('Poison Message Handling', 'Consumer
// Timeout'), to negative acknowledgements and to network partitions, and the release
// notes of 4.0 and 4.3.
var releases = []struct {
	major, minor int // from this release on
	Features
}{
	{4, 3, Features{DeliveryLimit: 20, CountHeader: "x-acquired-count", TimeoutCancels: true, LookNeedsRight: true}},
	{4, 0, Features{DeliveryLimit: 20, CountHeader: "x-delivery-count", MinorityPauses: true}},
	{3, 10, Features{CountHeader: "x-delivery-count", MinorityPauses: true, NacksForSilentQueue: true}},
}

// FeaturesOf tells those of the broker at an AMQP address.
func FeaturesOf(t testing.TB, amqpURL string) Features {
	t.Helper()
	conn, err := amqp.Dial(amqpURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var major, minor int
	version, _ := conn.Properties["version"].(string)
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
		t.Fatalf("the broker's version %q: %v", version, err)
	}
	for _, release := range releases {
		if major > release.major || major == release.major && minor >= release.minor {
			return release.Features
		}
	}
	t.Fatalf("no features are known of RabbitMQ %s", version)
	panic("unreachable")
}
