// Package program has what every command begins and ends with.
package program

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Main runs a command and ends the process with the code that it returns. The
// context ends with SIGTERM or SIGINT; a second one ends the process at once.
func Main(run func(ctx context.Context, args []string, stdout, stderr io.Writer) int) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
