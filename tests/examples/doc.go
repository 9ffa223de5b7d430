// Package examples runs the examples of the documentation that need servers, as they
// stand there: go/doc makes a program of each, as it does for pkg.go.dev, and the
// program gets the addresses of private servers in the place of those that are shown.
// The examples that need no server are run by go test in their own packages.
package examples
