// Package cluster runs the bridge on a RabbitMQ cluster of three nodes, with
// quorum queues, and takes nodes from it under load: the leader of the staging
// queue, the leader of a target queue, one that is partitioned off, and one that is frozen. The
// processes, the traffic and the judge are those of package faults. -cluster.pause 30ms
// makes the traffic heavy.
//
// Clients know one address. A proxy stands behind it, as the load balancer that
// people put before a cluster: a connection goes to the next node that answers. While a node is
// frozen, which takes connections and answers nothing, senders and verifiers know the addresses
// of all nodes instead.
package cluster
