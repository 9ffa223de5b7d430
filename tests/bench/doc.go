// Package bench measures the bridge beside something to compare it with, in one
// run on private servers; figures of different runs or machines say little.
//
//	go test -run=NONE -bench=. -benchtime=1x -timeout=30m ./tests/bench
package bench
