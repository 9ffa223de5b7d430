// Package traces follows one trace from an HTTP request through the bridge to the receiver, and
// draws it for the documentation.
package traces
