// Package program has the start and the end that all commands share.
package program

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// Main runs a command and ends the process with the code that run returns. With -version alone it
// prints the version of the build instead. The context ends with SIGTERM or SIGINT; a second signal
// ends the process at once.
func Main(run func(ctx context.Context, args []string, stdout, stderr io.Writer) int) {
	if len(os.Args) == 2 && strings.TrimLeft(os.Args[1], "-") == "version" && strings.HasPrefix(os.Args[1], "-") {
		fmt.Println(filepath.Base(os.Args[0]), version())
		os.Exit(0)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
