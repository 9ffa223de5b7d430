// Package orm has one program for each library through which Go applications use PostgreSQL. Each
// program sends in a transaction of its library, and receives in one. It is a module of its own,
// so that users do not inherit the libraries.
package orm
