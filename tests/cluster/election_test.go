package cluster

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// RabbitMQ 3.10 nacks all messages of a channel whose first message for a quorum queue arrives
// while the queue has no leader. This lasts until the old leader's node is back, whichever node
// leads meanwhile. Here brokers connect one after the other during an election. Each must get its
// message confirmed before the old leader is back.
func senderDuringElection(t *testing.T, cluster *servers.Cluster) {
	vhost := newVhost(t, cluster)
	leader, other := cluster.Nodes[0], cluster.Nodes[1].VhostURL(vhost)
	conn, err := amqp.Dial(leader.VhostURL(vhost))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare("q", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), servertest.Patience)
	defer cancel()
	isolated := make(chan error, 1)
	go func() { isolated <- cluster.Isolate(ctx, leader) }()
	var (
		brokers, nacked, nacks atomic.Int32
		running                sync.WaitGroup
	)
	ticker := time.NewTicker(30 * time.Millisecond)
	defer ticker.Stop()
	for more := 30; more > 0; <-ticker.C { // until the leader is isolated, and a little longer
		if len(isolated) > 0 {
			more--
		}
		running.Go(func() {
			brokers.Add(1)
			switch n := publishAtLast(ctx, t, other); {
			case n > 0:
				nacked.Add(1)
				nacks.Add(int32(n))
			}
		})
	}
	if err := <-isolated; err != nil {
		t.Error(err)
	}
	running.Wait()
	elected := leaderBeside(t, cluster, vhost, "q", leader)
	t.Logf("%s leads after %s", elected.Name(), leader.Name())
	t.Logf("%d of %d brokers met an election, and %d nacks", nacked.Load(), brokers.Load(), nacks.Load())
	if err := cluster.Rejoin(t.Context(), leader); err != nil {
		t.Fatal(err)
	}
	reunite(t, cluster, leader)
}

// publishAtLast publishes one message through a broker of its own until it is confirmed, and
// returns the number of nacks.
func publishAtLast(ctx context.Context, t *testing.T, address string) (nacks int) {
	broker, err := bridge.NewBroker(address, &bridge.BrokerOptions{DialTimeout: servertest.Patience, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Error(err)
		return 0
	}
	defer broker.Close()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		m := bridge.Outgoing{Target: bridge.Target{RoutingKey: "q"},
			Publishing: amqp.Publishing{MessageId: uuid.NewString(), DeliveryMode: amqp.Persistent}}
		err := broker.Publish(ctx, []bridge.Outgoing{m})
		switch {
		case err == nil:
			return nacks
		case ctx.Err() != nil:
			t.Errorf("not in time: a message through a broker that was nacked %d times: %v", nacks, err)
			return nacks
		case errors.Is(err, bridge.ErrNacked):
			nacks++
		}
		<-again.C
	}
}
