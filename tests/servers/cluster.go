package servers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Cluster is a RabbitMQ cluster of private nodes. A node that is killed, or shut
// down, joins it again when it is restarted. A node that sees no majority pauses
// itself (pause_minority), as RabbitMQ recommends for three nodes.
type Cluster struct {
	Nodes []*RabbitMQ
}

// StartCluster starts a cluster of n nodes, which takes ten to thirty seconds: the first one,
// and then the others side by side.
func StartCluster(ctx context.Context, n int, options *RabbitMQOptions) (*Cluster, error) {
	var given RabbitMQOptions
	if options != nil {
		given = *options
	}
	given.Config += "\ncluster_partition_handling = pause_minority\n"
	start := func(ctx context.Context, first *RabbitMQ) (*RabbitMQ, error) {
		return onFreePorts(ctx, 5, func(ports []int) (*RabbitMQ, error) {
			return startRabbitMQ(ctx, &given, ports, first)
		})
	}
	first, err := start(ctx, nil)
	if err != nil {
		return nil, err
	}
	others := make([]*RabbitMQ, n-1)
	var starting errgroup.Group // not one that ends the others: Stop waits for nodes that have started
	for i := range others {
		starting.Go(func() (err error) {
			others[i], err = start(ctx, first)
			return err
		})
	}
	err = starting.Wait()
	others = slices.DeleteFunc(others, func(node *RabbitMQ) bool { return node == nil })
	c := &Cluster{Nodes: append([]*RabbitMQ{first}, others...)}
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// Kill kills all nodes.
func (c *Cluster) Kill() {
	for _, node := range c.Nodes {
		node.Kill()
	}
}

// Stop ends all nodes for good and removes their data.
func (c *Cluster) Stop() error {
	c.Kill() // nobody needs the data
	var err error
	for i := range c.Nodes {
		// The first node's companion maps the ports of all.
		err = errors.Join(err, c.Nodes[len(c.Nodes)-1-i].Stop())
	}
	return err
}

// Isolate partitions a node off: it and the others drop their connections, and
// refuse each other's handshakes until Rejoin. It models a network that says at
// once that the other side cannot be reached, not one in which packets vanish; the
// nodes would take the time of net_ticktime to notice that.
func (c *Cluster) Isolate(ctx context.Context, node *RabbitMQ) error {
	return c.eval(ctx, node, "erlang:set_cookie(N, isolated), erlang:disconnect_node(N)")
}

// Rejoin ends Isolate.
func (c *Cluster) Rejoin(ctx context.Context, node *RabbitMQ) error {
	return c.eval(ctx, node, "erlang:set_cookie(N, erlang:get_cookie())")
}

// eval runs Erlang on a node, for each N of the others.
func (c *Cluster) eval(ctx context.Context, node *RabbitMQ, expression string) error {
	var others []string
	for _, other := range c.Nodes {
		if other != node {
			others = append(others, "'"+other.Node+"'")
		}
	}
	text := fmt.Sprintf("lists:foreach(fun(N) -> %s end, [%s])", expression, strings.Join(others, ", "))
	if _, err := node.Eval(ctx, "%s", text); err != nil {
		return fmt.Errorf("partition cluster: %w", err)
	}
	return nil
}
