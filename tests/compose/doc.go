// Package compose holds the alerts and the dashboard to the metrics of the real commands,
// which a real Prometheus scrapes. The script engine, beside this file, runs the stack on a
// real container engine, and holds the compose file and the images to what they say.
package compose
