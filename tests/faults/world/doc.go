// Package world is the harness of the fault tests. It starts senders, verifiers and receivers as
// processes, each with its own links to the database and to the broker, injects the faults of a
// plan, drains the traffic, and judges.
//
// The judge reads the databases, the queues and the diaries, never a counter of the product. Every
// message belongs to an order, a row of the business table that is inserted in the same
// transaction. So the database itself shows which messages had to be delivered. Receivers store
// every delivery and its effect.
package world
