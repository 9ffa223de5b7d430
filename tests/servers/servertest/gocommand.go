package servertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// goLimit bounds the go command, which may have to compile everything on a busy machine.
const goLimit = 15 * time.Minute

// Go runs the go command, such as "build", without C. The command must succeed.
func Go(t testing.TB, args ...string) {
	t.Helper()
	if err := TryGo(t.Context(), args...); err != nil {
		t.Fatal(err)
	}
}

// TryGo does the same and returns the error.
func TryGo(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, goLimit, errors.New("it does not end"))
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.WaitDelay = time.Minute // for a compiler that outlives the go command
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", args[0], errors.Join(err, context.Cause(ctx)), output)
	}
	return nil
}

// Overlay creates a file for the go command's -overlay. It replaces files, given by their paths
// from root, by these texts.
func Overlay(t testing.TB, root string, texts map[string]string) (path string) {
	t.Helper()
	root, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	write := func(name string, text []byte) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	replace := make(map[string]string)
	for file, text := range texts {
		replace[filepath.Join(root, file)] = write(fmt.Sprint(len(replace), filepath.Ext(file)), []byte(text))
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	return write("overlay.json", text)
}
