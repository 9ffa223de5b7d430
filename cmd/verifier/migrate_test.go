package main

import (
	"testing"

	"github.com/twoqueue/twoqueue/cmd/internal/commandtest"
)

func TestMigrate(t *testing.T) {
	minimal(t)
	commandtest.Migrates(t, run, "verifier", "BRIDGE_DATABASE_URL", exitDatabase, "-migrate")
}
