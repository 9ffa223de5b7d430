// Package sqlc holds what package shopsql was generated from by sqlc.
package sqlc

//go:generate go run github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1 generate
