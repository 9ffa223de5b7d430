package servertest

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"
)

// goLimit is for the go command, which may have to compile everything.
const goLimit = 10 * time.Minute

// Go runs the go command, such as "build", which must succeed. What it builds needs no C.
func Go(t testing.TB, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), goLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v, %v\n%s", args[0], err, ctx.Err(), output)
	}
}
