package servertest

import (
	"fmt"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Features are the differences between the releases of RabbitMQ that tests run on. A test checks a
// feature, never the version.
type Features struct {
	// DeliveryLimit is the delivery limit of a quorum queue that was declared without one; 0 means
	// none.
	DeliveryLimit int
	// CountHeader is the header that a quorum queue adds to messages that a nack has handed back.
	// If it is not x-delivery-count, a nack does not count towards a delivery limit. A reject and a
	// lost channel always count.
	CountHeader string
	// TimeoutCancels says that the consumer timeout cancels the consumer and leaves the
	// channel open, where late acks are ignored.
	TimeoutCancels bool
	// MinorityPauses says that a node without a majority of its cluster can be configured to end
	// its connections (pause_minority). Otherwise it keeps its clients, which get no answers.
	MinorityPauses bool
	// NacksForSilentQueue says that a message to a quorum queue that does not answer is nacked
	// after a minute, if it is the first message of its channel.
	NacksForSilentQueue bool
	// LookNeedsRight says that a user without rights to a queue cannot learn whether it exists.
	LookNeedsRight bool
	// ClassicCanBeOff says that the broker can be configured to have no classic queues.
	ClassicCanBeOff bool
	// DelayedRetry says that a policy can delay messages that a consumer gives back.
	DelayedRetry bool
}

// The sources: RabbitMQ's guides to quorum queues ('Poison Message Handling', 'Consumer
// Timeout'), to negative acknowledgements and to network partitions, and the release
// notes of 4.0 and 4.3.
var releases = []struct {
	major, minor int // from this release on
	Features
}{
	{4, 3, Features{DeliveryLimit: 20, CountHeader: "x-acquired-count", TimeoutCancels: true, LookNeedsRight: true, ClassicCanBeOff: true, DelayedRetry: true}},
	{4, 0, Features{DeliveryLimit: 20, CountHeader: "x-delivery-count", MinorityPauses: true}},
	{3, 10, Features{CountHeader: "x-delivery-count", MinorityPauses: true, NacksForSilentQueue: true}},
}

// FeaturesOf returns the features of the broker at an AMQP address.
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
