// Package examples runs the examples of the documentation that need servers, as they
// stand there: go/doc makes a program of each, as it does for pkg.go.dev, which gets the
// addresses of private servers in the place of those that are shown. All of them are built
// into one.
// The examples that need no server are run by go test in their own packages.
package examples
