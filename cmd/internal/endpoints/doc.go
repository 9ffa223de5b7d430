// Package endpoints has the HTTP servers of a long-running command, for the handlers of package
// bridge/probes and for profiles. Each server has its own address, time-outs, and an end. None of
// them has a login: bind them to where only those can reach them who may.
package endpoints
