// Package cluster runs the bridge on a RabbitMQ cluster of three nodes, with quorum queues. Under
// load nodes fail: the leader of the staging queue, the leader of a target queue, a node that is
// partitioned off, and a node that is frozen. Processes, traffic and judge come from package
// faults. -cluster.pause 30ms makes the traffic heavy.
//
// Clients have one address: a proxy, which does the work of the load balancer in front of a real
// cluster and connects to the next node that answers. A frozen node accepts connections and
// answers nothing. For that test senders and verifiers have the addresses of all nodes instead.
package cluster
