// Package traces follows one trace from an HTTP request through the bridge to the receiver.
package traces
