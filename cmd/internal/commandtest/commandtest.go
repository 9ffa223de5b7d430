// Package commandtest runs a command inside the tests of the command's own package, without any
// server. Package program below tests runs the real binaries.
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

// A Command is the function that a command's main runs.
type Command func(ctx context.Context, args []string, stdout, stderr io.Writer) int

// Environment sets these variables, each NAME=value, and unsets all others with a command's prefix,
// until the test ends.
func Environment(t *testing.T, prefix string, env ...string) {
	t.Helper()
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, prefix+"_") {
			t.Setenv(name, "") // restores the variable after the test
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
func Run(t *testing.T, run Command, args ...string) (code int, stdout, stderr string) {
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

// Refused runs a command that must end with this code, and with one line that says why. It returns
// the line after the command's name. The line must not have the tests' password, s3cret.
func Refused(t *testing.T, run Command, command string, code int, args ...string) (why string) {
	t.Helper()
	got, stdout, line := Run(t, run, args...)
	why, named := strings.CutPrefix(line, command+": ")
	if got != code || stdout != "" || !named || strings.Count(line, "\n") != 1 || strings.Contains(line, "s3cret") {
		t.Errorf("with %q it ends with %d, not %d, and says %q%q", args, got, code, stdout, line)
	}
	return strings.TrimSuffix(why, "\n")
}

// Help checks the help of a command. Its lines must fit a terminal. One line must be sample. No line
// may contain a value of set. Help does not check the list of variables, which is generated from the
// configuration.
func Help(t *testing.T, run Command, sample string, set ...string) {
	t.Helper()
	code, stdout, stderr := Run(t, run, "-help")
	if code != 0 || stderr != "" || !strings.Contains(stdout, "\n"+sample+"\n") {
		t.Errorf("the help ends with %d, %q, and must have %q:\n%s", code, stderr, sample, stdout)
	}
	for line := range strings.Lines(stdout) {
		if len(line) > 81 {
			t.Errorf("longer than 80 characters: %s", line)
		}
	}
	for _, value := range set {
		if strings.Contains(stdout, value) {
			t.Errorf("the help shows %s, which is set", value)
		}
	}
}

// ReadmeTable checks that README.md has the table of variables of a command's configuration.
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
