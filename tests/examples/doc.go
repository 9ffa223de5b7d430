// Package examples runs the documentation's examples that need servers. go/doc makes a program of
// each, as it does for pkg.go.dev. The addresses in it are replaced by private ones.
// All examples are built into one program. go test runs the examples without servers in their own
// packages.
package examples
