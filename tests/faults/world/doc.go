// Package world is the harness of the fault tests: it starts senders, verifiers
// and receivers as processes, each with links of its own to the database and to
// the broker, does to all of them what a plan says, brings the traffic to its
// end, and judges.
//
// The judge reads the databases and the queues, never a counter of the program.
// Every message belongs to an order, a row of the business table that is inserted
// in the same transaction: so the database itself says which messages had to be
// delivered. Receivers store every delivery, and its effect.
package world
