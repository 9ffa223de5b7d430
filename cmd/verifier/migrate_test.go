package main

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
)

// A job that is stopped before the tables are there has not succeeded.
func TestAMigrationThatIsInterruptedHasFailed(t *testing.T) {
	minimal(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	t.Setenv("BRIDGE_DATABASE_URL", "postgres://user@"+silent.Addr().String()+"/db?sslmode=disable")
	ctx, interrupt := context.WithCancel(t.Context())
	var stderr strings.Builder
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"-migrate"}, io.Discard, &stderr) }()
	client, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	interrupt()
	if code := <-ended; code != exitFailed || !strings.HasPrefix(stderr.String(), "verifier: interrupted") {
		t.Errorf("exit code %d, %q", code, &stderr)
	}
}
