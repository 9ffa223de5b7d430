// Package sqlc holds the sources from which sqlc generated package shopsql.
package sqlc

//go:generate go run github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1 generate
