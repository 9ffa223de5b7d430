// Package compose holds the compose stack, the images, the Kubernetes example, the
// alerts and the dashboard to what they say, as far as that goes without a container
// engine: the files are read by the libraries of the programs that will read them, and
// the services that are ours are run by hand, in the order and with the commands,
// variables, secrets and health checks of the compose file, against private servers.
// The script engine, beside this file, runs the stack on a real one.
//
// It is a module of its own, so that users do not inherit those libraries.
package compose
