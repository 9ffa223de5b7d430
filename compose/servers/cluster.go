package servers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Cluster is a RabbitMQ cluster of private nodes. A node that was killed or shut down joins again
// when it is restarted. A node that reaches no majority pauses (pause_minority), as RabbitMQ
// recommends for three nodes.
type Cluster struct {
	Nodes []*RabbitMQ
}

// StartCluster starts a cluster of n nodes, which takes ten to thirty seconds: first one node, then
// the others concurrently.
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
	var starting errgroup.Group // without a context that ends the others: Stop waits for nodes that have started
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
	c.Kill() // the data are no longer needed
	var err error
	for i := range c.Nodes {
		// The first node's companion maps the ports of all nodes.
		err = errors.Join(err, c.Nodes[len(c.Nodes)-1-i].Stop())
	}
	return err
}

// Isolate partitions a node off: it and the others drop their connections, and refuse each other's
// handshakes until Rejoin. It models a network that reports at once that the other side is
// unreachable. If packets vanished instead, the nodes would notice only after net_ticktime.
func (c *Cluster) Isolate(ctx context.Context, node *RabbitMQ) error {
	return c.eval(ctx, node, "erlang:set_cookie(N, isolated), erlang:disconnect_node(N)")
}

// Rejoin ends Isolate.
func (c *Cluster) Rejoin(ctx context.Context, node *RabbitMQ) error {
	return c.eval(ctx, node, "erlang:set_cookie(N, erlang:get_cookie())")
}

// eval runs an Erlang expression on a node, for each other node N.
func (c *Cluster) eval(ctx context.Context, node *RabbitMQ, expression string) error {
	text := fmt.Sprintf("lists:foreach(fun(N) -> %s end, %s)", expression, c.others(node))
	if _, err := node.Eval(ctx, "%s", text); err != nil {
		return fmt.Errorf("partition cluster: %w", err)
	}
	return nil
}

// others returns the list of the other nodes, in Erlang.
func (c *Cluster) others(node *RabbitMQ) string {
	var others []string
	for _, other := range c.Nodes {
		if other != node {
			others = append(others, "'"+other.Node+"'")
		}
	}
	return "[" + strings.Join(others, ", ") + "]"
}

// ErrSplit says that all nodes of a cluster run and reach each other, and that some do not share
// one database of virtual hosts and queues. That happens if nodes took each other for dead, and met
// again while both ran. It lasts until one of them is restarted
// (https://www.rabbitmq.com/docs/partitions). A node pauses (pause_minority) only if it reaches no
// majority at the moment of its check. A frozen node checks when it is thawed, and by then it
// reaches the others (https://github.com/rabbitmq/rabbitmq-server/issues/17319).
var ErrSplit = errors.New("split: the nodes run, and some do not share one database")

// Whole returns nil if the nodes form one cluster: each reaches every other, shares its database
// with every other, and knows of no partition. Otherwise the error contains the answer of each
// node. The error wraps ErrSplit if the nodes will not come together by themselves.
func (c *Cluster) Whole(ctx context.Context) error {
	var told []string
	whole, settled := true, true
	for _, node := range c.Nodes {
		answer, err := node.Eval(ctx, view, c.others(node))
		switch {
		case err != nil: // such as the answer of a pausing node
			answer, whole, settled = err.Error(), false, false
		case answer != "{true, [], [], []}":
			whole, settled = false, settled && strings.HasPrefix(answer, "{true, [], ")
		}
		told = append(told, fmt.Sprintf("%s: {runs, unreached, apart, partitions} = %s", node.Node, answer))
	}
	if whole {
		return nil
	}
	err := fmt.Errorf("the nodes form no cluster:\n%s", strings.Join(told, "\n"))
	if settled {
		err = fmt.Errorf("%w: %w", ErrSplit, err)
	}
	return err
}

// view is Erlang that returns a node's view: whether the node runs and neither pauses nor returns
// from a pause, which others do not answer, which others do not share its database, and its known
// partitions. It first awaits the others' answers: a node that has just been in contact with
// another does not take it for dead soon after. Then it asks the process that decides whether to
// pause, which by then has decided about the lost nodes. The database is Mnesia, which RabbitMQ 4.3
// no longer has.
const view = `Others = %s,
	Unreached = [N || N <- Others, not lists:member(N, nodes()) orelse net_adm:ping(N) =/= pong],
	Partitions = try rabbit_node_monitor:partitions() catch error:undef -> [] end,
	Apart = try mnesia:system_info(is_running) of
			yes -> Others -- mnesia:system_info(running_db_nodes);
			_ -> []
		catch error:undef -> [] end,
	{rabbit:is_running() andalso whereis(rabbit_outside_app_process) =:= undefined, Unreached, Apart, Partitions}`
