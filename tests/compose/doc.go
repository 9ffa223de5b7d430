// Package compose checks the alerts and the dashboard against the metrics of the real commands,
// scraped by a real Prometheus. The script engine in this folder runs the stack on a real
// container engine and checks the compose file and the images.
package compose
