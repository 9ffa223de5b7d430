package servers_test

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/tests/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestAClusterGoesOnWithoutOneNode(t *testing.T) {
	leavesNothing(t)
	cluster := servertest.StartCluster(t, 3, nil)
	for _, node := range cluster.Nodes {
		if running := runningNodes(t, cluster, node); running != 3 {
			t.Fatalf("%s sees %d nodes running", node.Name(), running)
		}
	}
	first, second := cluster.Nodes[0], cluster.Nodes[1]
	publishConfirmed(t, first.URL(), "kept", "with three")
	// A quorum queue whose leader is killed in its first moments never gets another
	// one (RabbitMQ 3.10).
	if err := first.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}

	first.Kill()
	publishConfirmed(t, second.URL(), "kept", "with two")
	if err := first.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}

	if err := cluster.Isolate(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	publishConfirmed(t, second.URL(), "kept", "with one partitioned off")
	if running := runningNodes(t, cluster, second); running != 2 {
		t.Errorf("%d nodes are running with one partitioned off", running)
	}
	if err := cluster.Rejoin(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	servertest.Eventually(t, "the node is back", func() bool {
		conn, err := amqp.Dial(first.URL())
		if err != nil {
			return false
		}
		_ = conn.Close()
		return runningNodes(t, cluster, second) == 3
	})
	last := ""
	for _, want := range []string{"with three", "with two", "with one partitioned off"} {
		body := get(t, first.URL(), "kept")
		for body == last { // what was nacked may have been kept all the same
			body = get(t, first.URL(), "kept")
		}
		if last = want; body != want {
			t.Fatalf("the queue holds %q, not %q", body, want)
		}
	}
}

// runningNodes is how many nodes one of them sees running.
func runningNodes(t *testing.T, c *servers.Cluster, node *servers.RabbitMQ) (n int) {
	t.Helper()
	text, err := node.Ctl(t.Context(), "-q", "eval", "rabbit_nodes:all_running().")
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range c.Nodes {
		n += strings.Count(text, other.Name())
	}
	return n
}
