// Package probes has the HTTP endpoints that package verifier/ops and the commands share: /livez,
// /readyz and /metrics for orchestrators and Prometheus, and Private for pages without a login.
// Applications use package verifier/ops.
package probes
