// Package parts has the parts that the processes of the fault tests play: a sender, a verifier, a
// receiver. Each is the product's own code, wrapped to keep a diary. A process's standard output is
// its diary: one line for each event of a message, with the message's ID.
//
// A process survives the absence of a server: it tries again until it is told to end (SIGTERM). If
// its parent dies, the kernel kills it.
package parts
