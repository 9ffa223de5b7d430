// Package commandtest runs a command inside the tests of its own package, where none of its
// servers answers. Package program below tests runs the real binaries.
package commandtest

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/cmd/internal/environment"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// Environment has only these variables, each NAME=value, with a command's prefix until the
// test ends.
func Environment(t *testing.T, prefix string, env ...string) {
	t.Helper()
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, prefix+"_") {
			t.Setenv(name, "") // which restores it
			if err := os.Unsetenv(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	Set(t, env...)
}

// Set sets variables, each NAME=value, until the test ends.
func Set(t *testing.T, env ...string) {
	t.Helper()
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		t.Setenv(name, value)
	}
}

// Run runs a command, which must end by itself.
func Run(t *testing.T, run func(ctx context.Context, args []string, stdout, stderr io.Writer) int, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), servertest.Patience)
	defer cancel()
	var out, errs bytes.Buffer
	code = run(ctx, args, &out, &errs)
	if ctx.Err() != nil {
		t.Fatalf("with %q it does not end by itself: %s%s", args, &out, &errs)
	}
	return code, out.String(), errs.String()
}

// ReadmeTable holds the table of variables in the README.md of a command to its configuration.
func ReadmeTable(t *testing.T, prefix string, config any) {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	err = environment.Usage(&table, prefix, config, "| variable | default | meaning |\n|---|---|---|\n{{range .}}"+
		"| `{{usage_key .}}` | {{with usage_default .}}`{{.}}`{{end}} | {{usage_description .}} |\n{{end}}")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.ReplaceAll(table.String(), "*", `\*`)
	if !strings.Contains(string(readme), want) {
		t.Errorf("README.md does not have this table:\n%s", want)
	}
}
