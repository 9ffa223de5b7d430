// Package parts holds the parts that the processes of the fault tests play: a
// sender, a verifier, a receiver, each of them the product's own code with a
// diary around it. What a process writes to its standard output is its diary: one
// line for each thing that happened to a message, with the message's ID.
//
// A process does not mind that a server is away: it tries again until it is told
// to end (SIGTERM). If its parent dies, the kernel kills it.
package parts
