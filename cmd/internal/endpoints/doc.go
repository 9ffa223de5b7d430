// Package endpoints has the HTTP servers of a long-running command, for the handlers of package
// bridge/probes and for profiles. Each server has its own address, its time-outs and a Close. No
// server has a login: bind it to an address that only trusted clients can reach.
package endpoints
