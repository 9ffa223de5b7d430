// Package orm holds a program for each of the libraries that people use PostgreSQL with
// from Go. Each sends in a transaction of its library, and receives in one. It is a module
// of its own, so that nobody inherits the libraries.
package orm
