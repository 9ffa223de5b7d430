// Package endpoints has what a long-running command answers over HTTP: /livez, /readyz
// and /metrics for orchestrators and Prometheus, and profiles. Each server has its
// own address, time-outs, and an end. None of them has a login: bind them to where
// only those can reach them who may.
package endpoints
